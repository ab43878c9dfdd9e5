//go:build faults

package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

const (
	childDir  = "AUDIT_CHILD_DIR"
	childKeep = "AUDIT_CHILD_KEEP"
)

// TestKilledRotationsChild is the child of the test below. It has an open call and rotates parts
// until it is killed. Without a parent it does nothing.
func TestKilledRotationsChild(*testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		return
	}
	ctx := context.Background()
	now := newClock()
	now.advance(partAge / 2) // after the records of its parent
	r := Retention{PartAge: partAge}
	if os.Getenv(childKeep) != "" {
		r.KeepSize = 1
	}
	db, err := store.OpenAudit(ctx, dir)
	var l *Log
	if err == nil {
		l, err = Open(ctx, Options{Store: db, Head: filepath.Join(dir, HeadFile), Retention: r, Now: now.now})
	}
	if err == nil {
		_, err = begin(ctx, l, Record{Call: "open", Caller: "ann", Action: "system.bash"})
	}
	for err == nil {
		now.advance(partAge)
		if err = l.Event(ctx, Record{Action: "event"}); err == nil {
			_, err = fmt.Println("written") // reports a durable record to the parent
		}
	}
	fmt.Fprintln(os.Stderr, "not killed:", err)
	os.Exit(3)
}

// A process that is killed at any step of a rotation or a deletion leaves a valid log with every
// reported record. The next start closes the open call and continues the log.
func TestKilledRotations(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ point, keep string }{
		{"audit.rotate.begun", ""},
		{"audit.rotate.begun:3", ""},
		{"audit.rotate.made:2", ""},
		{"audit.seal.written:2", ""},
		{"audit.rotate.sealed", ""},
		{"audit.rotate.sealed:2", ""},
		{"audit.rotate.folded:2", ""},
		{"audit.remove.marked", "yes"},
		{"audit.remove.marked:2", "yes"},
		{"audit.remove.file:5", "yes"}, // the first four look for what an earlier rotation left
		{"audit.remove.file:6", "yes"},
		{"audit.remove.file:9", "yes"},
		{"audit.remove.file:10", "yes"},
	} {
		t.Run(c.point, func(t *testing.T) {
			t.Parallel()
			w, now := newParts(t)
			w.call("before")
			w.die()
			cmd := exec.Command(os.Args[0], "-test.run=^TestKilledRotationsChild$")
			cmd.Env = append(os.Environ(), childDir+"="+w.dir, childKeep+"="+c.keep, failpoint.Env+"="+c.point)
			out, err := cmd.Output()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("child ended with %v: %s; want killed by SIGKILL", err, exit.Stderr)
			}
			now.advance(48 * time.Hour)
			if r := w.verifyFiles(""); !r.OK {
				t.Errorf("after the kill: problems %s, parts %s; want no problems", problemKinds(r), states(r))
			}
			w.open()
			w.sound()
			r := w.verify("")
			if told := strings.Count(string(out), "written"); c.keep == "" &&
				len(w.list(Filter{Action: "event"})) < told {
				t.Errorf("log has %d events, want at least the %d written", len(w.list(Filter{Action: "event"})), told)
			}
			if got := w.list(Filter{Call: "open", Ending: LostEnding}); len(got) != 1 {
				t.Errorf("%d records close the open call, want 1", len(got))
			}
			for _, p := range r.Parts {
				if _, err := os.Stat(w.path(store.AuditPartFile(p.Number))); (err == nil) != (p.State != PartRemoved) {
					t.Errorf("part %d is %s and Stat of its file = %v; want a file unless it is removed", p.Number, p.State, err)
				}
			}
			w.call("after")
			w.rotate(now)
			w.sound()
			if left, _ := filepath.Glob(w.path("audit-*.new")); len(left) > 0 {
				t.Errorf("temporary files = %v, want none", left)
			}
		})
	}
}
