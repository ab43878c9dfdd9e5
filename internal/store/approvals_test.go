package store

import (
	"fmt"
	"testing"
	"time"
)

// oldApprovals are the tables before grants had the requester's trust.
const oldApprovals = `
DROP TABLE approvals;
DROP TABLE grants;
CREATE TABLE approvals (
	id TEXT PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL, call TEXT NOT NULL, caller TEXT NOT NULL,
	session TEXT NOT NULL, profile TEXT NOT NULL, tool TEXT NOT NULL, input BLOB NOT NULL, rule TEXT NOT NULL,
	reason TEXT NOT NULL, questions TEXT NOT NULL, key TEXT NOT NULL, hash TEXT NOT NULL, created INTEGER NOT NULL,
	expires INTEGER NOT NULL, decided INTEGER NOT NULL DEFAULT 0, by TEXT NOT NULL DEFAULT '',
	scope TEXT NOT NULL DEFAULT '', note TEXT NOT NULL DEFAULT '', modified BLOB NOT NULL DEFAULT x'',
	escalated TEXT NOT NULL DEFAULT '', used INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX approvals_key ON approvals (caller, key) WHERE key <> '';
CREATE TABLE grants (
	caller TEXT NOT NULL, session TEXT NOT NULL, tool TEXT NOT NULL, rule TEXT NOT NULL, approve INTEGER NOT NULL,
	approval TEXT NOT NULL, by TEXT NOT NULL, note TEXT NOT NULL, created INTEGER NOT NULL, PRIMARY KEY (caller,
	session, tool, rule)
) STRICT;
INSERT INTO approvals (id, kind, state, call, caller, session, profile, tool, input, rule, reason, questions,
		key, hash, created, expires)
	VALUES ('q', 'trust', 'pending', 'c', 'ann', 's', 'p', 'bash', x'7b7d', 'trust:3', '', '{}', 'k', 'h', 1, 2);
INSERT INTO grants VALUES ('ann', 's', 'bash', 'p/trust:3', 1, 'g', 'bob', '', 5);
`

func TestUpgradeRevokesOldGrants(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if _, err := s.db.ExecContext(t.Context(), oldApprovals); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second upgrade changes nothing
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, dir)
		if g, ok, err := s.Approvals().Grant(t.Context(), "ann", "s", "bash", "p/trust:3", 3, time.Time{}); ok ||
			err != nil {
			t.Errorf("Grant after an upgrade = %+v, %t, %v; want none", g, ok, err)
		}
		q, err := s.Approvals().Approval(t.Context(), "q")
		if err != nil || q.Trust != 3 || q.State != "pending" || q.Key != "k" {
			t.Errorf("question of an older version: %+v, %v; want one of trust 3", q, err)
		}
	}
	now := time.Unix(7, 0)
	if _, done, err := s.Approvals().DecideApproval(t.Context(), Approval{ID: "q", State: "approved", Decided: now},
		[]Grant{
			{Caller: "ann", Session: "s", Tool: "bash", Rule: "p/trust:3", Trust: 3, Approve: true, Created: now},
		}, false); !done || err != nil {
		t.Fatalf("DecideApproval = %t, %v; want true", done, err)
	}
	for trust := range 4 {
		_, ok, err := s.Approvals().Grant(t.Context(), "ann", "s", "bash", "p/trust:3", trust, time.Time{})
		if err != nil || ok != (trust == 3) {
			t.Errorf("Grant for trust %d: %t, %v; want %t", trust, ok, err, trust == 3)
		}
	}
}

func TestDecidedApprovalsPerCallerAreBounded(t *testing.T) {
	s := open(t, t.TempDir()).Approvals()
	at := time.Unix(1_000_000, 0)
	decide := func(caller, id, state string, input []byte) {
		t.Helper()
		at = at.Add(time.Second)
		if _, _, err := s.InsertApproval(t.Context(), Approval{ID: id, Caller: caller, State: "pending", Input: input,
			Created: at, Expires: at}); err != nil {
			t.Fatal(err)
		}
		if _, done, err := s.DecideApproval(t.Context(), Approval{ID: id, State: state, Decided: at}, nil, false); err != nil ||
			!done {
			t.Fatalf("DecideApproval(%s) = %t, %v; want true", id, done, err)
		}
	}
	decide("bob", "bobs", "denied", []byte(`{}`))
	for i := range maxDecided + 5 {
		decide("ann", fmt.Sprintf("ann-%04d", i), "denied", []byte(`{}`))
	}
	list, err := s.List(t.Context(), ApprovalFilter{Caller: "ann"})
	if err != nil || len(list) != maxDecided || list[0].ID != "ann-1004" {
		t.Errorf("%d decided requests are kept, %v; want the newest %d", len(list), err, maxDecided)
	}
	for i := range 5 {
		decide("cyd", fmt.Sprintf("cyd-%d", i), "denied", make([]byte, decidedBytes/4))
	}
	if list, err := s.List(t.Context(), ApprovalFilter{Caller: "cyd"}); err != nil || len(list) != 5 {
		t.Errorf("%d large requests are kept, %v; want 5", len(list), err)
	}
	for i := range 5 {
		decide("dee", fmt.Sprintf("dee-%d", i), "denied", make([]byte, decidedBytes/2+1))
	}
	if list, err := s.List(t.Context(), ApprovalFilter{Caller: "dee"}); err != nil || len(list) != 2 {
		t.Errorf(
			"%d requests of over half the bound are kept, %v; want 2: the bound is for those before the last",
			len(list),
			err,
		)
	}
	decide("eve", "gone", "cancelled", []byte(`{"command":"ls"}`))
	if got, err := s.Approval(t.Context(), "gone"); err != nil || string(got.Input) != "null" {
		t.Errorf("the input of a cancelled request = %s, %v; want null", got.Input, err)
	}
	if list, err := s.List(t.Context(), ApprovalFilter{Caller: "bob"}); err != nil || len(list) != 1 {
		t.Errorf("%d requests of another caller are kept, %v; want 1", len(list), err)
	}
}
