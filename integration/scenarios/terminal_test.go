//go:build integration

package scenarios

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// The scenarios of terminals that can share a server.
func TestTerminals(t *testing.T) {
	t.Parallel()
	onServerOfAll(t, roomy, func(t *testing.T, s *harness.Server) {
		id := lease(t, s, v1.SandboxRequest{}).ID
		for _, c := range []struct {
			name string
			run  func(*testing.T, *harness.Server, string)
		}{
			{"a person at a terminal", personAtTerminal},
			{"leaving and coming back", leaveAndComeBack},
			{"a client that is killed", killedClientComesBack},
			{"a full screen that is killed", killedFullScreen},
			{"pipes at both ends", terminalInPipes},
			{"two at once", twoAtOneTerminal},
			{"a flood is whole", terminalFlood},
			{"the scroll-back is exact", scrollBack},
			{"a slow client gets the exact gap", slowTerminal},
			{"input that nobody reads", unreadInput},
			{"a kill takes everything", killedTerminal},
			{"a plain shell can be attached to", attachPlainShell},
			{"what is no terminal", noTerminal},
			{"who is refused", refusedTerminals},
			{"hostile messages", hostileMessages},
			{"garbage on the wire", garbageFrames},
		} {
			t.Run(c.name, func(t *testing.T) {
				defer s.For(t)()
				t.Cleanup(func() { forgetShells(t, s, id) })
				c.run(t, s, id)
			})
		}
	})
}

// forgetShells kills and forgets what is left in a sandbox.
func forgetShells(t *testing.T, s *harness.Server, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Long)
	defer cancel()
	list, err := s.Client.Shells(ctx, id)
	if err != nil {
		t.Error(err)
	}
	for _, sh := range list {
		if _, err := s.Client.KillShell(ctx, sh.ID, 0, true); err != nil {
			t.Error(err)
		}
	}
}

// screen is a terminal with what it has shown.
type screen struct {
	*client.Terminal
	t    *testing.T
	mu   sync.Mutex
	text bytes.Buffer
	err  error // of Read
	over chan struct{}
}

func watch(t *testing.T, term *client.Terminal, err error) *screen {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	c := &screen{Terminal: term, t: t, over: make(chan struct{})}
	go func() { // the clean-up waits for it
		defer close(c.over)
		buf := make([]byte, 32<<10)
		for {
			n, err := term.Read(buf)
			c.mu.Lock()
			c.text.Write(buf[:n])
			c.err = err
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		term.Close()
		<-c.over
	})
	return c
}

// open opens a terminal that is killed with the test.
func open(t *testing.T, s *harness.Server, id string, r v1.TerminalRequest) *screen {
	t.Helper()
	term, err := s.Client.OpenTerminal(context.Background(), id, r, client.TerminalOptions{})
	if err == nil {
		t.Cleanup(func() { _, _ = s.Client.KillShell(context.Background(), term.Shell(), 0, false) }) // or it goes with its sandbox
	}
	return watch(t, term, err)
}

func (c *screen) shown() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

func (c *screen) sees(text string) {
	c.t.Helper()
	defer func() {
		if c.t.Failed() {
			c.t.Logf("shown: %q", c.shown())
		}
	}()
	harness.Eventually(c.t, harness.Short, fmt.Sprintf("the terminal shows %q", text), func() bool { return strings.Contains(c.shown(), text) })
}

func (c *screen) types(text string) {
	c.t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

// ends waits for the command's end and returns all that was shown.
func (c *screen) ends(code int) string {
	c.t.Helper()
	select {
	case <-c.over:
	case <-time.After(harness.Long):
		c.t.Fatalf("the terminal does not end; it shows %.2000q", c.shown())
	}
	r, err := c.Wait()
	if err != nil || c.err != io.EOF || r.Ending != "exited" || r.ExitCode != code {
		c.t.Fatalf("it ended with %+v, %v, %v, want exit code %d", r, err, c.err, code)
	}
	return c.shown()
}

// lines is what a terminal shows of seq.
func lines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d\r\n", i+1)
	}
	return b.String()
}

func twoAtOneTerminal(t *testing.T, s *harness.Server, id string) {
	a := open(t, s, id, v1.TerminalRequest{Argv: []string{"cat"}, Cols: 100, Rows: 40})
	term, err := s.Client.AttachTerminal(context.Background(), a.Shell(), client.TerminalOptions{})
	b := watch(t, term, err)
	term, err = s.Client.AttachTerminal(context.Background(), a.Shell(), client.TerminalOptions{ReadOnly: true})
	look := watch(t, term, err)
	a.types("from a\r")
	b.types("from b\r")
	for _, c := range []*screen{a, b, look} {
		c.sees("from a\r\n")
		c.sees("from b\r\n")
	}
	if _, err := look.Write([]byte("no")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("who looks may type: %v", err)
	}
	if err := look.Resize(1, 1); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("who looks may resize: %v", err)
	}
	b.Close()
	a.types("alone\r")
	look.sees("alone\r\n")
	a.types("\x04")
	want := a.ends(0)
	if got := look.ends(0); got != want {
		t.Errorf("one saw %q, the other %q", got, want)
	}
	if list, err := s.Client.Shells(within(t), id); err != nil || len(list) != 1 || !list[0].TTY {
		t.Errorf("shells are %+v, %v", list, err)
	}
}

func terminalFlood(t *testing.T, s *harness.Server, id string) {
	c := open(t, s, id, v1.TerminalRequest{Argv: []string{"seq", "5000"}})
	if got := c.ends(0); got != lines(5000) {
		t.Errorf("%d bytes, want %d", len(got), len(lines(5000)))
	}
	big := open(t, s, id, v1.TerminalRequest{Argv: []string{"seq", "400000"}, SpoolBytes: 8 << 20})
	if got := big.ends(0); got != lines(400000) {
		t.Errorf("%d bytes, want %d", len(got), len(lines(400000)))
	}
}

func scrollBack(t *testing.T, s *harness.Server, id string) {
	c := open(t, s, id, v1.TerminalRequest{Command: "seq 60000; cat", SpoolBytes: 128 << 10})
	c.sees("60000\r\n")
	all := lines(60000)
	// From the oldest byte that is kept.
	late := watch(t, must(t)(s.Client.AttachTerminal(context.Background(), c.Shell(), client.TerminalOptions{})), nil)
	late.sees("60000\r\n")
	kept := late.shown()
	if len(kept) > 128<<10 || len(kept) < 64<<10 || !strings.HasSuffix(all, kept) {
		t.Errorf("%d bytes are kept, and are not the end of what was written", len(kept))
	}
	// From an offset that is kept, and from one that is not.
	at := int64(len(all) - 1000)
	part := watch(t, must(t)(s.Client.AttachTerminal(context.Background(), c.Shell(), client.TerminalOptions{Offset: at})), nil)
	part.sees("60000\r\n")
	if part.shown() != all[at:] {
		t.Errorf("from %d: %q", at, part.shown())
	}
	gap := make(chan [2]int64, 1)
	old := watch(t, must(t)(s.Client.AttachTerminal(context.Background(), c.Shell(), client.TerminalOptions{
		Offset: 10, Gap: func(from, to int64) { gap <- [2]int64{from, to} },
	})), nil)
	old.sees("60000\r\n")
	if g := <-gap; g[0] != 10 || all[g[1]:] != old.shown() || g[1] != int64(len(all)-len(kept)) {
		t.Errorf("the gap is %v, and %d bytes follow", g, len(old.shown()))
	}
	if _, err := s.Client.AttachTerminal(within(t), c.Shell(), client.TerminalOptions{Offset: 1 << 40}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("from beyond the end: %v", err)
	}
	c.types("\x04")
	c.ends(0)
	// What has ended can be looked at too.
	again := watch(t, must(t)(s.Client.AttachTerminal(context.Background(), c.Shell(), client.TerminalOptions{})), nil)
	if got := again.ends(0); got != kept {
		t.Errorf("afterwards %d bytes are there, and %d were", len(got), len(kept))
	}
}

func must(t *testing.T) func(*client.Terminal, error) *client.Terminal {
	return func(term *client.Terminal, err error) *client.Terminal {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return term
	}
}

func slowTerminal(t *testing.T, s *harness.Server, id string) {
	// More than what sockets hold, and much more than is kept.
	const n = 3_000_000
	c := open(t, s, id, v1.TerminalRequest{Command: fmt.Sprintf("read x; seq %d; read y", n), SpoolBytes: 256 << 10})
	type hole struct{ at, missing int64 }
	var mu sync.Mutex
	var holes []hole
	var read int64
	slow := must(t)(s.Client.AttachTerminal(context.Background(), c.Shell(), client.TerminalOptions{Gap: func(from, to int64) {
		mu.Lock()
		defer mu.Unlock()
		holes = append(holes, hole{from, to - from})
	}}))
	defer slow.Close()
	c.types("\r")
	c.sees(fmt.Sprintf("\n%d\r\n", n)) // it was not held up
	c.types("\r")
	var got bytes.Buffer
	if _, err := io.Copy(&got, slow); err != nil {
		t.Fatal(err)
	}
	if r, err := slow.Wait(); err != nil || r.ExitCode != 0 {
		t.Fatal(r, err)
	}
	read = int64(got.Len())
	if len(holes) == 0 {
		t.Fatalf("no gap in %d bytes", read)
	}
	whole := "\r\n" + lines(n) + "\r\n" // with the echo of both Enters
	var pos, from int64
	for _, h := range holes {
		size := h.at - pos
		if got.Len() < int(from+size) || whole[pos:h.at] != got.String()[from:from+size] {
			t.Fatalf("what is before the gap %+v differs", h)
		}
		pos, from = h.at+h.missing, from+size
	}
	if whole[pos:] != got.String()[from:] {
		t.Errorf("what is after the last gap differs")
	}
}

func unreadInput(t *testing.T, s *harness.Server, id string) {
	c := open(t, s, id, v1.TerminalRequest{Command: "stty raw -echo; echo ready; sleep 1000", Cols: 80, Rows: 24})
	c.sees("ready")
	stuck := make(chan error, 1)
	go func() { // ends with the terminal
		_, err := c.Write(bytes.Repeat([]byte("x"), 4<<20))
		stuck <- err
	}()
	time.Sleep(500 * time.Millisecond)
	// Others are heard all the same.
	if err := c.Resize(91, 17); err != nil {
		t.Fatal(err)
	}
	if err := c.Signal(within(t), 15); err != nil {
		t.Fatal(err)
	}
	<-c.over
	r, err := c.Wait()
	if err != nil || r.Ending != "signalled" || r.Signal != 15 {
		t.Errorf("it ended with %+v, %v", r, err)
	}
	if err := <-stuck; err == nil {
		t.Error("what nobody read was taken")
	}
}

func killedTerminal(t *testing.T, s *harness.Server, id string) {
	word := mark()
	c := open(t, s, id, v1.TerminalRequest{})
	c.types("setsid -f bash -c 'exec -a " + word + " sleep 1000'\rbash -c 'exec -a " + word + " sleep 1000' &\r")
	seen(t, word, 2)
	r, err := s.Client.KillShell(within(t), c.Shell(), 0, false)
	if err != nil || r.Result == nil || r.Result.Ending != "cancelled" {
		t.Errorf("%+v %v", r, err)
	}
	gone(t, word)
	<-c.over
	if end, err := c.Wait(); err != nil || end.Ending != "cancelled" {
		t.Errorf("who is attached learns %+v, %v", end, err)
	}
}

func noTerminal(t *testing.T, s *harness.Server, id string) {
	ctx := within(t)
	for name, c := range map[string]struct {
		req   v1.TerminalRequest
		field string
	}{
		"both":          {v1.TerminalRequest{Argv: []string{"a"}, Command: "b"}, "command"},
		"negative size": {v1.TerminalRequest{Cols: -1}, "cols"},
		"huge size":     {v1.TerminalRequest{Rows: 1 << 20}, "rows"},
		"odd term":      {v1.TerminalRequest{Term: "a b"}, "term"},
		"uid 0":         {v1.TerminalRequest{User: "0"}, "user"},
		"big spool":     {v1.TerminalRequest{SpoolBytes: 1 << 40}, "spool_bytes"},
		"no program":    {v1.TerminalRequest{Argv: []string{"no-such-program"}}, "argv"},
		"no folder":     {v1.TerminalRequest{Cwd: "/no/such/folder"}, "cwd"},
	} {
		_, err := s.Client.OpenTerminal(ctx, id, c.req, client.TerminalOptions{})
		var p *v1.Problem
		if !errors.As(err, &p) || p.Field != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, err := s.Client.Shells(ctx, id); err != nil || len(list) != 0 {
		t.Errorf("something is left of them: %+v %v", list, err)
	}
	sh, err := s.Client.StartShell(ctx, id, v1.ShellRequest{Exec: v1.Exec{Argv: []string{"sleep", "1000"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Client.KillShell(ctx, sh.ID, 0, true) //nolint:errcheck // the sandbox ends
	if _, err := s.Client.AttachTerminal(ctx, sh.ID, client.TerminalOptions{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a shell without one: %v", err)
	}
	if _, err := s.Client.AttachTerminal(ctx, "nope", client.TerminalOptions{}); !errdefs.IsNotFound(err) {
		t.Errorf("no shell: %v", err)
	}
	c := open(t, s, id, v1.TerminalRequest{Argv: []string{"cat"}})
	s.Ask(t, "POST", "/v1/shells/"+c.Shell()+"/input?close=true", "x").Problem(t, 400, "invalid_argument", "close")
	if a := s.Ask(t, "POST", "/v1/shells/"+c.Shell()+"/input", "typed\r"); a.Status != 204 {
		t.Errorf("input: %d %s", a.Status, a.Body)
	}
	c.sees("typed\r\n")
	// The same key opens the same one.
	one := must(t)(s.Client.OpenTerminal(ctx, id, v1.TerminalRequest{Argv: []string{"cat"}}, client.TerminalOptions{}, client.IdempotencyKey("tty"+id)))
	defer one.Close()
	two := must(t)(s.Client.OpenTerminal(ctx, id, v1.TerminalRequest{Argv: []string{"cat"}}, client.TerminalOptions{}, client.IdempotencyKey("tty"+id)))
	defer two.Close()
	defer s.Client.KillShell(ctx, one.Shell(), 0, true) //nolint:errcheck // the sandbox ends
	if one.Shell() != two.Shell() {
		t.Errorf("%s and %s", one.Shell(), two.Shell())
	}
}

// A terminal outlives the service, in good order or not, and its clients come
// back by themselves: no byte of output is lost or doubled, and what is typed
// while nobody is there arrives.
func TestTerminalsSurviveRestart(t *testing.T) {
	t.Parallel()
	onServerOfAll(t, onDemand, func(t *testing.T, s *harness.Server) {
		id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
		c := open(t, s, id, v1.TerminalRequest{Command: "stty -echo; echo ready; i=0; while read x; do i=$((i+1)); echo $i:$x; done", SpoolBytes: 1 << 20})
		c.sees("ready\r\n")
		want, n := "ready\r\n", 0
		type1 := func(word string) {
			n++
			c.types(word + "\r")
			want += fmt.Sprintf("%d:%s\r\n", n, word)
		}
		for _, stop := range []func(){s.Term, s.Kill9, s.Term} {
			code := closeCode(t, s, id, c.Shell())
			type1("before")
			c.sees(want)
			stop()
			if got := <-code; got >= 0 && got != 1012 {
				t.Errorf("a client is told %d", got)
			}
			typed := make(chan struct{})
			go func() { defer close(typed); type1("away") }() // it waits for a connection
			s.Start()
			<-typed
			c.sees(want)
		}
		c.types("\x04")
		if got := c.ends(0); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
