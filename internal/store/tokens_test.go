package store

import (
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func TestTokensAreStoredAndRevokedOnce(t *testing.T) {
	s, err := Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	at := time.Unix(1000, 7).UTC()
	first := Token{ID: "a", Hash: []byte{1, 2}, Caller: "ann", Profile: "p", Trust: 2, Quotas: v1.Quotas{Sandboxes: 3},
		Operator: true, Note: "n", Created: at, Expires: at.Add(time.Hour)}
	second := Token{ID: "b", Hash: []byte{3}, Caller: "bob", Created: at.Add(1)}
	for _, tok := range []Token{first, second} {
		if err := s.InsertToken(t.Context(), tok); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.TouchTokens(t.Context(), map[string]time.Time{"b": at, "none": at}); err != nil {
		t.Fatal(err)
	}
	second.Used = at
	got, err := s.Tokens(t.Context())
	if d := cmp.Diff([]Token{second, first}, got); err != nil || d != "" {
		t.Fatalf("Tokens: %v (-want +got):\n%s", err, d)
	}
	first.Revoked = at.Add(time.Minute)
	// The second revocation changes nothing.
	for _, when := range []time.Time{first.Revoked, first.Revoked.Add(time.Hour)} {
		if got, err := s.RevokeToken(t.Context(), "a", when); err != nil || !cmp.Equal(got, first) {
			t.Fatalf("RevokeToken = %+v, %v; want the first result", got, err)
		}
	}
	if _, err := s.RevokeToken(t.Context(), "none", at); !errdefs.IsNotFound(err) {
		t.Fatalf("RevokeToken of an unknown id: %v, want NotFound", err)
	}
}

func TestCallsAreCountedPerDay(t *testing.T) {
	s, err := Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []struct {
		day string
		n   int64
	}{{"2026-01-01", 5}, {"2026-01-01", 7}, {"2026-01-02", 1}} {
		if err := s.SetCalls(t.Context(), c.day, map[string]int64{"ann": c.n}); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Calls(t.Context(), c.day); err != nil || got["ann"] != c.n {
			t.Fatalf("Calls(%s) = %v, %v; want ann: %d", c.day, got, err, c.n)
		}
	}
	if got, err := s.Calls(t.Context(), "2026-01-01"); err != nil || len(got) != 0 {
		t.Fatalf("Calls of an old day = %v, %v; want none", got, err)
	}
}

func TestWorkspaceNamesArePerCaller(t *testing.T) {
	s, err := Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, disk := range []string{"d1", "d1", "d2"} {
		if err := s.NameWorkspace(t.Context(), disk, "ann", "w"+disk); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.UnnameWorkspace(t.Context(), "d2"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.WorkspaceNames(t.Context(), "ann"); err != nil || !cmp.Equal(got, map[string]string{"d1": "wd1"}) {
		t.Fatalf("WorkspaceNames(ann) = %v, %v; want d1", got, err)
	}
	if got, err := s.WorkspaceNames(t.Context(), "bob"); err != nil || len(got) != 0 {
		t.Fatalf("WorkspaceNames(bob) = %v, %v; want none", got, err)
	}
}
