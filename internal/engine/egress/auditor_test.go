package egress

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

var eventually = testenv.Eventually

// openAuditor returns an auditor with its log and the database below. slow, if not nil, delays the
// writes of the log.
func openAuditor(t *testing.T, o audit.Options, slow *slowAudit) (*auditor, *audit.Log, *store.AuditDB) {
	t.Helper()
	db, err := store.OpenAudit(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	o.Store, o.Head = db, filepath.Join(t.TempDir(), "head")
	if slow != nil {
		slow.AuditDB = db
		o.Store = slow
	}
	log, err := audit.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	return newAuditor(log, slog.New(slog.DiscardHandler)), log, db
}

// Every connection is recorded, or counted if the log is too slow.
func TestConnectionsAreRecordedOrCountedAsMissed(t *testing.T) {
	slow := &slowAudit{open: make(chan struct{})}
	auditor, _, db := openAuditor(t, audit.Options{}, slow)
	// Each sandbox makes twice its burst, and all together exceed the queue.
	const boxes = 8
	const all = boxes * 2 * recordBurst
	var notes sync.WaitGroup
	for i := range boxes {
		auditor.register("box"+strconv.Itoa(i), "ann"+strconv.Itoa(i))
		notes.Go(func() {
			for j := range all / boxes {
				auditor.enqueue(
					netpolicy.Connection{
						Session: "box" + strconv.Itoa(i),
						Host:    "a.test",
						Port:    1 + i,
						Path:    strconv.Itoa(j),
						Allowed: j%2 == 0,
						Reason:  "because",
					},
				)
			}
		})
	}
	notes.Wait() // no connection waited for the log
	close(slow.open)
	auditor.close()
	records, missed, fast := 0, 0, 0
	err := db.Scan(t.Context(), store.AuditFilter{}, func(r store.AuditRow) error {
		switch text := string(r.Record); {
		case strings.Contains(text, `"kind":"egress"`) && strings.Contains(text, `"caller":"ann`):
			records++
		case strings.Contains(text, "egress.missed"):
			_, rest, _ := strings.Cut(text, `"error":"`)
			n := 0
			if _, err := fmt.Sscan(rest, &n); err != nil {
				return err
			}
			missed += n
			if strings.Contains(text, `"sandbox":"box`) {
				fast += n
			}
		}
		return nil
	})
	if err != nil || records+missed != all || records < queueSize || fast == 0 || fast == missed {
		t.Errorf("%d recorded and %d missed (%d too fast), error %v; want %d in sum, at least %d recorded, "+
			"some missed for each reason", records, missed, fast, err, all, queueSize)
	}
}

// Connections beyond half of the caller's share of the log are only counted. Those of the local
// operator are always recorded.
func TestConnectionsLeaveRoomForCalls(t *testing.T) {
	auditor, log, db := openAuditor(t, audit.Options{CallerDailyBytes: 100_000}, nil)
	const each = recordBurst
	for box, caller := range map[string]string{"a": "ann", "l": caller.LocalCaller} {
		auditor.register(box, caller)
		for i := range each {
			auditor.enqueue(netpolicy.Connection{Session: box, Host: "a.test", Reason: "because"})
			if i%20 == 0 { // queued records are not charged yet
				eventually(t, "the connections are taken", func() bool { return len(auditor.queue) == 0 })
			}
		}
	}
	auditor.close()
	records := map[string]int{}
	var missed string
	if err := db.Scan(t.Context(), store.AuditFilter{}, func(r store.AuditRow) error {
		if records[r.Caller]++; strings.Contains(string(r.Record), "egress.missed") {
			missed = string(r.Record)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if records[caller.LocalCaller] != each || records["ann"] < 10 || records["ann"] > 500 ||
		!strings.Contains(missed, "share of the log") {
		t.Errorf("records = %v, missed: %s; want %d of the local caller, 10 to 500 of ann and a missed share",
			records, missed, each)
	}
	if err := log.Admit("ann"); err != nil {
		t.Errorf("Admit after the connections: %v, want no error", err)
	}
}

// slowAudit blocks writes until it is opened.
type slowAudit struct {
	*store.AuditDB
	open chan struct{}
}

func (s *slowAudit) Append(ctx context.Context, rows []store.AuditRow) error {
	<-s.open
	return s.AuditDB.Append(ctx, rows)
}

// The sandboxes of one caller leave room in the queue for another's connections.
func TestConnectionQueueIsSharedBetweenCallers(t *testing.T) {
	slow := &slowAudit{open: make(chan struct{})}
	auditor, _, db := openAuditor(t, audit.Options{}, slow)
	const boxes = 12
	for i := range boxes {
		box := "box" + strconv.Itoa(i)
		auditor.register(box, "hog")
		for range recordBurst {
			auditor.enqueue(netpolicy.Connection{Session: box, Host: "a.test", Port: 1})
		}
	}
	auditor.register("anns", "ann")
	auditor.enqueue(netpolicy.Connection{Session: "anns", Host: "b.test", Port: 1})
	close(slow.open)
	auditor.close()
	hogs, anns, missed := 0, 0, 0
	err := db.Scan(t.Context(), store.AuditFilter{}, func(r store.AuditRow) error {
		switch text := string(r.Record); {
		case strings.Contains(text, "egress.missed"):
			_, rest, _ := strings.Cut(text, `"error":"`)
			n := 0
			_, err := fmt.Sscan(rest, &n)
			missed += n
			return err
		case strings.Contains(text, "b.test"):
			anns++
		case strings.Contains(text, "a.test"):
			hogs++
		}
		return nil
	})
	if err != nil || anns != 1 || hogs+missed != boxes*recordBurst || hogs < callerQueue {
		t.Errorf("%d records of one caller, %d of the other, %d missed, error %v; want 1, at least %d and %d with missed",
			anns, hogs, missed, err, callerQueue, boxes*recordBurst)
	}
	if len(auditor.queued) != 0 {
		t.Errorf("queued counts = %v, want none", auditor.queued)
	}
}

// TestPathIsRedactedWhenConnectionEnds checks that a path is stored without the secrets of the call
// that requested it, although the call ends before the record is written.
func TestPathIsRedactedWhenConnectionEnds(t *testing.T) {
	slow, secrets := &slowAudit{open: make(chan struct{})}, audit.NewRedactor()
	auditor, _, db := openAuditor(t, audit.Options{Redactor: secrets}, slow)
	auditor.register("box", "ann")
	const secret = "a-value-of-the-call"
	release, err := secrets.Own(t.Context(), "ann", []string{secret})
	if err != nil {
		t.Fatal(err)
	}
	// More than one batch, so that some records wait behind the slow write.
	for range 2 * recordBurst {
		auditor.enqueue(netpolicy.Connection{Session: "box", Host: "a.test", Port: 443, Path: "/v/" + secret, Allowed: true})
	}
	release()
	close(slow.open)
	auditor.close()
	records := 0
	err = db.Scan(t.Context(), store.AuditFilter{}, func(r store.AuditRow) error {
		records++
		if strings.Contains(string(r.Record), secret) {
			return fmt.Errorf("record %s shows the secret", r.Record)
		}
		return nil
	})
	if err != nil || records == 0 {
		t.Errorf("Scan = %d records, %v; want some, none with the secret", records, err)
	}
}
