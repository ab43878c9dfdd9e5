package engine

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
)

func TestTokenRecordsOmitSecrets(t *testing.T) {
	s := newWorld(t).governed(t)
	made, err := s.Callers.CreateToken(t.Context(), caller.Local(""), v1.TokenRequest{Caller: "ci", Note: "of a test"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Callers.CreateToken(t.Context(), caller.Local(""), v1.TokenRequest{Caller: "ci", Trust: 9}); err == nil {
		t.Error("a token of trust 9 was created, want error")
	}
	if _, err := s.Callers.RevokeToken(t.Context(), caller.Local(""), made.ID); err != nil {
		t.Fatal(err)
	}
	list, err := s.Governed.Audit(t.Context(), caller.Local(""), governed.AuditFilter{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	secret := strings.TrimPrefix(made.Secret, caller.TokenPrefix+made.ID+"_")
	for _, r := range list.Items {
		what := r.Action
		if r.Error != "" {
			what += ": " + r.Error
		}
		got = append(got, what)
		if strings.Contains(string(r.Input), secret) || strings.Contains(string(r.Input), "hash") {
			t.Errorf("record has input %s, want it without the secret and its hash", r.Input)
		}
		if r.Error == "" && !strings.Contains(string(r.Input), made.ID) {
			t.Errorf("%s: record has input %s, want it to name the token %s", r.Action, r.Input, made.ID)
		}
	}
	want := []string{"token.create", "token.create: trust is 9: from 0 to 3", "token.revoke"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}
