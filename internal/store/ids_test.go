package store

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestApprovalIDsAreTheCallersThatBeginWithPrefix(t *testing.T) {
	s := open(t, t.TempDir())
	for i := range 4 {
		a := Approval{ID: fmt.Sprintf("01a20a2c-%04x", i), Caller: "ann", State: "denied", Created: time.Unix(int64(i), 0)}
		if i == 0 {
			a.Caller = "bob"
		}
		if _, _, err := s.Approvals().InsertApproval(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		caller, prefix string
		want           []string
	}{
		{"", "01a20a2c-000", []string{"01a20a2c-0000", "01a20a2c-0001", "01a20a2c-0002"}},
		{"bob", "01a20a2c", []string{"01a20a2c-0000"}},
		{"ann", "01a20a2c-0000", nil},
		{"", "01a20a2d", nil},
	} {
		got, err := s.ApprovalIDs(t.Context(), c.caller, c.prefix)
		if got = got[:min(len(got), 3)]; !slices.Equal(got, c.want) || err != nil {
			t.Errorf("ApprovalIDs(%q, %q) = %v, %v; want %v", c.caller, c.prefix, got, err, c.want)
		}
	}
}
