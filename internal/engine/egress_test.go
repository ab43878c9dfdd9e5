package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// Egress without a gateway, over the ceiling or with another caller's secret is refused before a
// sandbox is used.
func TestInvalidEgressIsRefused(t *testing.T) {
	w := newWorld(t)
	none := w.start(t)
	if _, err := none.Lease(t.Context(), caller.Local(""), v1.SandboxRequest{Egress: &v1.Egress{Rules: []v1.EgressRule{{Host: "a.test"}}}}); !errdefs.IsFailedPrecondition(
		err,
	) {
		t.Errorf("without a gateway: %v", err)
	}
	none.stop()
	s := w.startOptions(t, func(o *Options) {
		o.Egress = &EgressOptions{
			Secrets: []Credential{
				{
					Secret:  netpolicy.Secret{Name: "api", Hosts: []string{"a.test"}, Header: "X-Key", Value: "value-of-it"},
					Callers: []string{"ann"},
				},
			},
		}
	})
	for _, c := range []struct {
		principal caller.Principal
		ask       v1.Egress
		is        func(error) bool
		field     string
	}{
		{caller.Principal{Caller: "ann"}, v1.Egress{Rules: []v1.EgressRule{{Host: "a.test"}}}, errdefs.IsPermissionDenied, "egress"},
		{caller.Local(""), v1.Egress{Rules: []v1.EgressRule{{Host: "a.test", Paths: []string{"/"}}}}, errdefs.IsInvalidArgument, "egress.rules[0].paths"},
		{caller.Local(""), v1.Egress{Secrets: []string{"api"}}, errdefs.IsInvalidArgument, "egress.rules"},
		{caller.Local(""), v1.Egress{Rules: []v1.EgressRule{{Host: "a.test"}}, Secrets: []string{"x"}}, errdefs.IsNotFound, "egress.secrets[0]"},
	} {
		_, err := s.Lease(t.Context(), c.principal, v1.SandboxRequest{Egress: &c.ask})
		if bad, ok := errors.AsType[*usererror.InvalidError](err); !ok || !c.is(err) || bad.Field != c.field {
			t.Errorf("%+v: %v", c.ask, err)
		}
	}
	for name, want := range map[string]bool{"ann": true, "bob": false} {
		if _, ok := s.egress.credential(caller.Principal{Caller: name}, "api"); ok != want {
			t.Errorf("%s has the secret: %t", name, ok)
		}
	}
	if rows, err := s.store.Leases(t.Context(), caller.LocalCaller, true, 10); err != nil || len(rows) != 0 {
		t.Errorf("%v %v", rows, err)
	}
}

// Allow rules apply to the listed callers and profiles.
func TestCeilingIsPerCaller(t *testing.T) {
	x := &egressService{ceilings: map[string]*netpolicy.Rules{}, o: EgressOptions{Allow: []Allowance{
		{Rule: netpolicy.Rule{Host: "all.test"}},
		{Rule: netpolicy.Rule{Host: "ann.test"}, Callers: []string{"ann"}, Profiles: []string{"*"}},
		{Rule: netpolicy.Rule{Host: "write.test"}, Profiles: []string{"universal", "phase2"}},
		{Rule: netpolicy.Rule{Host: "both.test"}, Callers: []string{"bob"}, Profiles: []string{"universal"}},
		{Rule: netpolicy.Rule{Host: "all.test", Deny: true}, Callers: []string{"eve"}},
	}}}
	for _, c := range []struct {
		principal caller.Principal
		want      string
	}{
		{caller.Principal{Caller: "ann", Profile: "readonly"}, "all ann"},
		{caller.Principal{Caller: "ann", Profile: "phase2"}, "all ann write"},
		{caller.Principal{Caller: "bob", Profile: "universal"}, "all write both"},
		{caller.Principal{Caller: "bob", Profile: "readonly"}, "all"},
		{caller.Principal{Caller: "eve", Profile: "universal"}, "write"},
		{caller.Principal{Caller: "eve"}, ""},
	} {
		rules, err := x.ceiling(c.principal)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, name := range []string{"all", "ann", "write", "both"} {
			if rules.Decide(netpolicy.Want{Host: name + ".test", Port: 443, Tunnel: true}).Allowed {
				got = append(got, name)
			}
		}
		if again, err := x.ceiling(c.principal); err != nil || again != rules {
			t.Errorf("%+v: another ceiling at the second time, %v", c.principal, err)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v may reach %v, not %s", c.principal, got, c.want)
		}
	}
}

// Closing and reopening egress resets neither traffic nor record counts. Both are dropped with the
// lease.
func TestTrafficCountsAcrossEgressSessions(t *testing.T) {
	w := newWorld(t)
	s := w.startOptions(t, func(o *Options) { o.Egress = &EgressOptions{} })
	sb, err := s.Lease(t.Context(), caller.Local(""), v1.SandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	l := s.sched.Live(sb.ID)
	g, err := s.grantFor(caller.Local(""), &v1.Egress{Rules: []v1.EgressRule{{Host: "a.test"}}})
	if err != nil {
		t.Fatal(err)
	}
	s.egress.ended[l.ID] = traffic{3, 4}
	var first *auditedSandbox
	for range 2 {
		s.serveEgress(l, g, false)
		known := s.egress.auditor.known[l.ID]
		if first == nil {
			first = known
		}
		if got := s.egressState(l.ID); got.Sent != 3 || got.Received != 4 || known != first {
			t.Errorf("%+v, %p and %p", got, known, first)
		}
		o, _ := s.egress.find(l.ID)
		s.egress.end(o)
	}
	s.serveEgress(l, g, false)
	o, _ := s.egress.find(l.ID)
	if err := s.Remove(t.Context(), caller.Local(""), l.ID); err != nil {
		t.Fatal(err)
	}
	<-o.done
	if len(s.egress.ended)+len(s.egress.auditor.known) > 0 {
		t.Errorf("%v %v", s.egress.ended, s.egress.auditor.known)
	}
}

// A sandbox with a profile's network cannot be used by a token of the same caller whose profile has
// none, neither by id nor as a session.
func TestProfileNetworkIsLimitedToItsCalls(t *testing.T) {
	w := newWorld(t)
	if err := os.Mkdir(filepath.Join(w.dir, "profiles"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "profiles", "wide.yaml"), []byte("name: wide\nextends: default\nnetwork: bridge\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := w.governed(t)
	wide := caller.Principal{Caller: agent.Caller, Profile: "wide", Trust: 3}
	l, err := s.session(t.Context(), wide, "work", v1.SandboxRequest{}, core.Acquisition{Network: profile.NetworkBridge})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []caller.Principal{wide, {Caller: agent.Caller, Operator: true}} {
		if _, err := s.findLease(t.Context(), p, l.ID); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
	r := bash("true")
	r.Session = "work"
	_, bySession := s.Governed.CallTool(t.Context(), agent, "system.bash", r, governed.Watch{})
	r.Session, r.Sandbox = "", l.ID
	_, byID := s.Governed.CallTool(t.Context(), agent, "system.bash", r, governed.Watch{})
	_, byPort := s.Dial(t.Context(), agent, l.ID, 80)
	_, byExec := s.Exec(t.Context(), agent, l.ID, v1.Exec{Argv: []string{"true"}}, core.Stream{})
	for how, err := range map[string]error{"session": bySession, "id": byID, "port": byPort, "exec": byExec} {
		if !errdefs.IsPermissionDenied(err) {
			t.Errorf("by %s: %v", how, err)
		}
	}
}

// Every connection is recorded, or counted if the log is too slow.
func TestConnectionsAreRecordedOrCountedAsMissed(t *testing.T) {
	db, err := store.OpenAudit(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	slow := &slowAudit{AuditDB: db, open: make(chan struct{})}
	log, err := audit.Open(t.Context(), audit.Options{Store: slow, Head: filepath.Join(t.TempDir(), "head")})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	auditor := newEgressAuditor(log, slog.New(slog.DiscardHandler))
	// Each sandbox makes twice its burst, and all together exceed the queue.
	const boxes = 8
	const all = boxes * 2 * egressRecordBurst
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
	err = db.Scan(t.Context(), store.AuditFilter{}, func(r store.AuditRow) error {
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
	if err != nil || records+missed != all || records < egressQueue || fast == 0 || fast == missed {
		t.Errorf("%d recorded, %d counted as missed, %d of them as too fast, of %d: %v", records, missed, fast, all, err)
	}
}

// Connections beyond half of the caller's share of the log are only counted. Those of the local
// operator are always recorded.
func TestConnectionsLeaveRoomForCalls(t *testing.T) {
	db, err := store.OpenAudit(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	const share = 100_000
	log, err := audit.Open(
		t.Context(),
		audit.Options{Store: db, Head: filepath.Join(t.TempDir(), "head"), CallerDailyBytes: share},
	)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	auditor := newEgressAuditor(log, slog.New(slog.DiscardHandler))
	const each = egressRecordBurst
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
		t.Errorf("%v records; missed: %s", records, missed)
	}
	if err := log.Admit("ann"); err != nil {
		t.Errorf("connections keep the caller from calling: %v", err)
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
	db, err := store.OpenAudit(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	slow := &slowAudit{AuditDB: db, open: make(chan struct{})}
	log, err := audit.Open(t.Context(), audit.Options{Store: slow, Head: filepath.Join(t.TempDir(), "head")})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	auditor := newEgressAuditor(log, slog.New(slog.DiscardHandler))
	const boxes = 12
	for i := range boxes {
		box := "box" + strconv.Itoa(i)
		auditor.register(box, "hog")
		for range egressRecordBurst {
			auditor.enqueue(netpolicy.Connection{Session: box, Host: "a.test", Port: 1})
		}
	}
	auditor.register("anns", "ann")
	auditor.enqueue(netpolicy.Connection{Session: "anns", Host: "b.test", Port: 1})
	close(slow.open)
	auditor.close()
	hogs, anns, missed := 0, 0, 0
	err = db.Scan(t.Context(), store.AuditFilter{}, func(r store.AuditRow) error {
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
	if err != nil || anns != 1 || hogs+missed != boxes*egressRecordBurst || hogs < egressCallerQueue {
		t.Errorf("of the other caller %d are recorded, of the one %d and %d are counted: %v", anns, hogs, missed, err)
	}
	if len(auditor.queued) != 0 {
		t.Errorf("%v are counted as queued", auditor.queued)
	}
}
