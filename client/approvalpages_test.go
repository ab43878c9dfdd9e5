package client

import (
	"net/http"
	"slices"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func TestApprovalsSelectReadsPages(t *testing.T) {
	var asked []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RawQuery)
		id := "b"
		if len(asked) == 1 {
			id = "a"
		}
		answer(t, w, v1.List[v1.Approval]{Items: []v1.Approval{{ID: id}}, Truncated: true})
	})
	got, err := c.Approvals.Select(t.Context(), ApprovalFilter{State: "denied", Limit: 2})
	if err != nil || len(got) != 2 || got[0].ID != "a" || got[1].ID != "b" {
		t.Errorf("Select = %+v, %v; want a, b", got, err)
	}
	if want := []string{"limit=2&state=denied", "before=a&limit=1&state=denied"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
}
