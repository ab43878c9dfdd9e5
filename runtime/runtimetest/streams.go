package runtimetest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// checkOutputDescriptors checks that what a command does to its output descriptors does not affect
// when it ends.
func checkOutputDescriptors(t *testing.T, b *box) {
	t.Helper()
	for line, code := range map[string]int{
		"sleep 1000 & exit 3":                               3, // a child keeps them open
		"exec >&- 2>&-; exit 4":                             4, // both are closed
		"exec >&- 2>&-; sleep 1; exit 5":                    5,
		"setsid sleep 1000 >/tmp/out 2>&1 & disown; exit 6": 6,
		"exec 1<>/proc/self/fd/1; echo x; exit 7":           7, // it opens the read end of its own pipe
		"echo out; echo err >&2; exit 8":                    8,
	} {
		o := b.sh(t, line)
		if !o.exited(code) {
			t.Errorf("%s: %v, want code %d", line, o, code)
		}
		if code == 8 && (o.stdout != "out\n" || o.stderr != "err\n") {
			t.Errorf("%s: %v, want code %d", line, o, code)
		}
	}
	cmd := bash("yes")
	cmd.OutputLimit = 100_000
	if o := b.runCommand(t, cmd); o.Ending != runtime.OutputLimit || len(o.stdout) != 100_000 {
		t.Errorf("ending = %s with %d bytes; want %s with 100000", o.Ending, len(o.stdout), runtime.OutputLimit)
	}
}

// checkConcurrentCommands checks that concurrent commands each get their own result and output, and
// that all their processes die.
func checkConcurrentCommands(t *testing.T, b *box) {
	t.Helper()
	const uid = 30_000
	all := make([]*runningCommand, 50)
	for i := range all {
		cmd := bash(fmt.Sprintf("sleep 1000 & echo %d; exit %d", i, i))
		cmd.User = strconv.Itoa(uid)
		all[i] = b.startCommand(t, cmd, guest.IO{})
	}
	for i, r := range all {
		if o := r.waitResult(t); !o.exited(i) || o.stdout != fmt.Sprintf("%d\n", i) {
			t.Errorf("command %d of %d: %v; want exit code %d and its number as output", i, len(all), o, i)
		}
	}
	b.checkDead(t, uid)
}

// checkLargeOutput checks that every byte arrives and that the guest's memory does not grow.
func checkLargeOutput(t *testing.T, s *suite) {
	t.Helper()
	b, size := s.newSandbox(t, nil), int64(largeOutputBytes)
	if !s.driver.Capabilities(s.Class).Has(runtime.CapLateBind) {
		size = largeOutputBytesRemote
	}
	before := b.mustPing(t).RSSBytes
	var count capped
	r := b.startCommand(t, bash(fmt.Sprintf("head -c %d /dev/zero; echo end >&2", size)), guest.IO{Stdout: &count})
	most, pings := before, 0
	began := time.Now()
	for going := true; going; {
		most = max(most, b.mustPing(t).RSSBytes)
		pings++
		select {
		case <-r.ended:
			going = false
		case <-time.After(100 * time.Millisecond):
		}
	}
	o := r.waitResult(t)
	t.Logf("%d MiB in %s, guest RSS at most %d KiB (%d before, %d pings)", count.all()>>20,
		time.Since(began).Round(time.Millisecond), most>>10, before>>10, pings)
	if !o.exited(0) || count.all() != size {
		t.Errorf("received %d bytes, want %d: %v", count.all(), size, o.Result)
	}
	if most > before+16<<20 {
		t.Errorf("guest RSS grew from %d to %d bytes, want at most 16 MiB more", before, most)
	}
}

// endless is an infinite input.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// silent is an input that blocks until its context ends.
type silent struct{ ctx context.Context }

func (s silent) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, context.Cause(s.ctx)
}

// checkInputs checks commands that read without end from an infinite or a silent input, and
// commands that do not read.
func checkInputs(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, nil)
	quiet, cancel := context.WithCancel(t.Context())
	defer cancel()
	for name, c := range map[string]struct {
		line string
		rw   guest.IO
	}{
		"reads without end":       {"cat >/dev/null", guest.IO{Stdin: endless{}}},
		"waits for input":         {"cat", guest.IO{Stdin: silent{quiet}}},
		"never reads":             {"sleep 1000", guest.IO{Stdin: endless{}}},
		"reads in the background": {"exec 3<&0; cat <&3 >/dev/null & sleep 1000", guest.IO{Stdin: endless{}}},
	} {
		cmd := bash(c.line)
		cmd.Timeout = time.Second / 2
		o, err := b.tryCommand(t.Context(), cmd, c.rw)
		if err != nil || o.Ending != runtime.Timeout {
			t.Errorf("command that %s: %v, %v; want timeout", name, o, err)
		}
		b.checkDead(t, runtime.CommandUID)
		if rss := b.mustPing(t).RSSBytes; rss > 64<<20 {
			t.Errorf("guest RSS = %d bytes, want at most %d", rss, 64<<20)
		}
	}
	o, err := b.tryCommand(t.Context(), bash("exec <&-; exit 3"), guest.IO{Stdin: endless{}})
	if err != nil || !o.exited(3) {
		t.Errorf("command that closes its input: %v, %v; want code 3", o, err)
	}
	o, err = b.tryCommand(t.Context(), bash("cat; exit 4"), guest.IO{Stdin: strings.NewReader("some input")})
	if err != nil || !o.exited(4) || o.stdout != "some input" {
		t.Errorf("command that echoes its input: %v, %v; want code 4", o, err)
	}
	if o := b.sh(t, "cat; exit 5"); !o.exited(5) || o.stdout != "" {
		t.Errorf("command without input: %v, want code 5", o)
	}
}
