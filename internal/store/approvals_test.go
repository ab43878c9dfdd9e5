package store

import (
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
			t.Errorf("grant of an older version: %+v, %v", g, err)
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
		t.Fatal(done, err)
	}
	for trust := range 4 {
		_, ok, err := s.Approvals().Grant(t.Context(), "ann", "s", "bash", "p/trust:3", trust, time.Time{})
		if err != nil || ok != (trust == 3) {
			t.Errorf("trust %d: granted %v, %v", trust, ok, err)
		}
	}
}
