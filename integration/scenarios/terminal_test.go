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

// TestTerminals runs the scenarios of terminals that can share a server.
func TestTerminals(t *testing.T) {
	t.Parallel()
	onServerAllRuntimes(t, roomy, func(t *testing.T, s *harness.Server) {
		id := lease(t, s, v1.SandboxRequest{}).ID
		for _, c := range []struct {
			name string
			run  func(*testing.T, *harness.Server, string)
		}{
			{"a user at a terminal", testUserAtTerminal},
			{"detaching and attaching again", testDetachAndAttach},
			{"a killed client", testKilledClient},
			{"a killed full-screen program", testKilledFullScreen},
			{"pipes as input and output", testTerminalInPipes},
			{"two clients at once", testTwoAtOneTerminal},
			{"all output arrives", testTerminalFlood},
			{"the scroll-back is exact", testScrollBack},
			{"a slow client gets exact gaps", testSlowTerminal},
			{"unread input", testUnreadInput},
			{"a kill ends all processes", testKilledTerminal},
			{"a plain shell can be attached to", testAttachPlainShell},
			{"invalid requests", testInvalidTerminals},
			{"refused clients", testRefusedTerminals},
			{"hostile messages", testHostileMessages},
			{"garbage on the wire", testGarbageFrames},
		} {
			t.Run(c.name, func(t *testing.T) {
				defer s.For(t)()
				t.Cleanup(func() { forgetShells(t, s, id) })
				c.run(t, s, id)
			})
		}
	})
}

// forgetShells kills and removes the shells of a sandbox.
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

// screen is a terminal connection with what it has shown.
type screen struct {
	*client.Terminal
	t     *testing.T
	mu    sync.Mutex
	text  bytes.Buffer
	err   error // the last error of Read
	ended chan struct{}
}

// newScreen reads from the terminal until its end or the test's. err is the error of opening it.
func newScreen(t *testing.T, term *client.Terminal, err error) *screen {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	c := &screen{Terminal: term, t: t, ended: make(chan struct{})}
	go func() { // the cleanup waits for it
		defer close(c.ended)
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
		<-c.ended
	})
	return c
}

// openTerminal opens a terminal. It is killed at the end of the test.
func openTerminal(t *testing.T, s *harness.Server, id string, r v1.TerminalRequest) *screen {
	t.Helper()
	term, err := s.Client.OpenTerminal(context.Background(), id, r, client.TerminalOptions{})
	if err == nil {
		// An error is ignored: the terminal may have ended with its sandbox.
		t.Cleanup(func() { _, _ = s.Client.KillShell(context.Background(), term.Shell(), 0, false) })
	}
	return newScreen(t, term, err)
}

// shown returns everything that the terminal has shown.
func (c *screen) shown() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// sees waits until the terminal has shown the text.
func (c *screen) sees(text string) {
	c.t.Helper()
	defer func() {
		if c.t.Failed() {
			c.t.Logf("shown: %q", c.shown())
		}
	}()
	harness.Eventually(c.t, harness.Short, fmt.Sprintf("the terminal shows %q", text), func() bool {
		return strings.Contains(c.shown(), text)
	})
}

// types sends input.
func (c *screen) types(text string) {
	c.t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

// ends waits until the command has exited with 0, and returns everything that was shown.
func (c *screen) ends() string {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(harness.Long):
		c.t.Fatalf("the terminal runs after %s, want it ended; it shows %.2000q", harness.Long, c.shown())
	}
	r, err := c.Wait()
	if err != nil || !errors.Is(c.err, io.EOF) || r.Ending != "exited" || r.ExitCode != 0 {
		c.t.Fatalf("terminal ended with %+v, %v, read error %v; want exit code 0", r, err, c.err)
	}
	return c.shown()
}

// lines returns what a terminal shows of "seq n".
func lines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d\r\n", i+1)
	}
	return b.String()
}

// testTwoAtOneTerminal attaches two clients and a read-only one. All must see the same.
func testTwoAtOneTerminal(t *testing.T, s *harness.Server, id string) {
	a := openTerminal(t, s, id, v1.TerminalRequest{Argv: []string{"cat"}, Cols: 100, Rows: 40})
	term, err := s.Client.AttachTerminal(context.Background(), a.Shell(), client.TerminalOptions{})
	b := newScreen(t, term, err)
	term, err = s.Client.AttachTerminal(context.Background(), a.Shell(), client.TerminalOptions{ReadOnly: true})
	reader := newScreen(t, term, err)
	a.types("from a\r")
	b.types("from b\r")
	for _, c := range []*screen{a, b, reader} {
		c.sees("from a\r\n")
		c.sees("from b\r\n")
	}
	if _, err := reader.Write([]byte("no")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Write of a read-only client: %v, want failed precondition", err)
	}
	if err := reader.Resize(1, 1); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Resize of a read-only client: %v, want failed precondition", err)
	}
	b.Close()
	a.types("alone\r")
	reader.sees("alone\r\n")
	a.types("\x04")
	want := a.ends()
	if got := reader.ends(); got != want {
		t.Errorf("the reader saw %q, want the same as the first client: %q", got, want)
	}
	if list, err := s.Client.Shells(within(t), id); err != nil || len(list) != 1 || !list[0].TTY {
		t.Errorf("Shells = %+v, %v; want one terminal", list, err)
	}
}

// testTerminalFlood checks that no output is lost, whether it fits into the default buffer or a
// larger one.
func testTerminalFlood(t *testing.T, s *harness.Server, id string) {
	c := openTerminal(t, s, id, v1.TerminalRequest{Argv: []string{"seq", "5000"}})
	if got := c.ends(); got != lines(5000) {
		t.Errorf("terminal shows %d bytes of seq 5000, want %d", len(got), len(lines(5000)))
	}
	big := openTerminal(t, s, id, v1.TerminalRequest{Argv: []string{"seq", "400000"}, SpoolBytes: 8 << 20})
	if got := big.ends(); got != lines(400000) {
		t.Errorf("terminal shows %d bytes of seq 400000, want %d", len(got), len(lines(400000)))
	}
}

// testScrollBack attaches at offsets that are in the buffer, before it and behind its end.
func testScrollBack(t *testing.T, s *harness.Server, id string) {
	c := openTerminal(t, s, id, v1.TerminalRequest{Command: "seq 60000; cat", SpoolBytes: 128 << 10})
	c.sees("60000\r\n")
	all := lines(60000)
	// From the oldest byte of the buffer.
	late := newScreen(t, must(t)(s.Client.AttachTerminal(context.Background(), c.Shell(), client.TerminalOptions{})), nil)
	late.sees("60000\r\n")
	kept := late.shown()
	if len(kept) > 128<<10 || len(kept) < 64<<10 || !strings.HasSuffix(all, kept) {
		t.Errorf("the buffer has %d bytes, want 64 to 128 KiB that are the end of the output", len(kept))
	}
	// From an offset in the buffer, and from one before it.
	at := int64(len(all) - 1000)
	part := newScreen(t,
		must(t)(s.Client.AttachTerminal(context.Background(), c.Shell(), client.TerminalOptions{Offset: at})), nil)
	part.sees("60000\r\n")
	if part.shown() != all[at:] {
		t.Errorf("attached at offset %d: %q, want the end of the output", at, part.shown())
	}
	gap := make(chan [2]int64, 1)
	old := newScreen(t, must(t)(s.Client.AttachTerminal(context.Background(), c.Shell(), client.TerminalOptions{
		Offset: 10, Gap: func(from, to int64) { gap <- [2]int64{from, to} },
	})), nil)
	old.sees("60000\r\n")
	if g := <-gap; g[0] != 10 || all[g[1]:] != old.shown() || g[1] != int64(len(all)-len(kept)) {
		t.Errorf("gap = %v, followed by %d bytes; want it from 10 to the beginning of the buffer", g, len(old.shown()))
	}
	if _, err := s.Client.AttachTerminal(within(t), c.Shell(),
		client.TerminalOptions{Offset: 1 << 40}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("AttachTerminal behind the end: %v, want invalid argument", err)
	}
	c.types("\x04")
	c.ends()
	// Clients can attach after the end.
	again := newScreen(t, must(t)(s.Client.AttachTerminal(context.Background(), c.Shell(), client.TerminalOptions{})), nil)
	if got := again.ends(); got != kept {
		t.Errorf("after the end the buffer has %d bytes, want %d", len(got), len(kept))
	}
}

// must returns a function that returns the terminal, or fails the test if there is an error.
func must(t *testing.T) func(*client.Terminal, error) *client.Terminal {
	t.Helper()
	return func(term *client.Terminal, err error) *client.Terminal {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return term
	}
}

// testSlowTerminal reads slower than the command writes. The client must get the exact offsets of
// what it missed.
func testSlowTerminal(t *testing.T, s *harness.Server, id string) {
	// More than sockets buffer, and much more than the terminal's buffer.
	const n = 3_000_000
	command := fmt.Sprintf("read x; seq %d; read y", n)
	c := openTerminal(t, s, id, v1.TerminalRequest{Command: command, SpoolBytes: 256 << 10})
	type gap struct{ at, missing int64 }
	var mu sync.Mutex
	var gaps []gap
	var read int64
	addGap := func(from, to int64) {
		mu.Lock()
		defer mu.Unlock()
		gaps = append(gaps, gap{from, to - from})
	}
	slow := must(t)(s.Client.AttachTerminal(context.Background(), c.Shell(), client.TerminalOptions{Gap: addGap}))
	defer slow.Close()
	c.types("\r")
	c.sees(fmt.Sprintf("\n%d\r\n", n)) // the command was not slowed down
	c.types("\r")
	var got bytes.Buffer
	if _, err := io.Copy(&got, slow); err != nil {
		t.Fatal(err)
	}
	if r, err := slow.Wait(); err != nil || r.ExitCode != 0 {
		t.Fatalf("Wait = %+v, %v; want exit code 0", r, err)
	}
	read = int64(got.Len())
	if len(gaps) == 0 {
		t.Fatalf("no gap in %d bytes, want some", read)
	}
	whole := "\r\n" + lines(n) + "\r\n" // with the echo of both Enters
	var pos, from int64
	for _, g := range gaps {
		size := g.at - pos
		if got.Len() < int(from+size) || whole[pos:g.at] != got.String()[from:from+size] {
			t.Fatalf("output before gap %+v = %d bytes, want the %d bytes from %d that were written", g, got.Len(), size, pos)
		}
		pos, from = g.at+g.missing, from+size
	}
	if whole[pos:] != got.String()[from:] {
		t.Errorf("output after the last gap = %.200q, want %.200q", got.String()[from:], whole[pos:])
	}
}

// testUnreadInput sends input that the command does not read. Resizing and signals must still work.
func testUnreadInput(t *testing.T, s *harness.Server, id string) {
	c := openTerminal(t, s, id, v1.TerminalRequest{Command: "stty raw -echo; echo ready; sleep 1000", Cols: 80, Rows: 24})
	c.sees("ready")
	stuck := make(chan error, 1)
	go func() { // the result is received below
		_, err := c.Write(bytes.Repeat([]byte("x"), 4<<20))
		stuck <- err
	}()
	time.Sleep(500 * time.Millisecond)
	// Other requests must not wait for the input.
	if err := c.Resize(91, 17); err != nil {
		t.Fatal(err)
	}
	if err := c.Signal(within(t), 15); err != nil {
		t.Fatal(err)
	}
	<-c.ended
	r, err := c.Wait()
	if err != nil || r.Ending != "signalled" || r.Signal != 15 {
		t.Errorf("terminal ended with %+v, %v; want signal 15", r, err)
	}
	if err := <-stuck; err == nil {
		t.Error("Write of unread input succeeded, want an error")
	}
}

// testKilledTerminal checks that killing a terminal ends all its processes, and that clients learn
// it.
func testKilledTerminal(t *testing.T, s *harness.Server, id string) {
	word := uniqueWord()
	c := openTerminal(t, s, id, v1.TerminalRequest{})
	c.types("setsid -f bash -c 'exec -a " + word + " sleep 1000'\rbash -c 'exec -a " + word + " sleep 1000' &\r")
	awaitProcesses(t, word, 2)
	r, err := s.Client.KillShell(within(t), c.Shell(), 0, false)
	if err != nil || r.Result == nil || r.Result.Ending != "cancelled" {
		t.Errorf("KillShell = %+v, %v; want cancelled", r, err)
	}
	assertNoProcess(t, word)
	<-c.ended
	if end, err := c.Wait(); err != nil || end.Ending != "cancelled" {
		t.Errorf("Wait of an attached client = %+v, %v; want cancelled", end, err)
	}
}

// testInvalidTerminals checks the errors of requests that do not describe or name a terminal.
func testInvalidTerminals(t *testing.T, s *harness.Server, id string) {
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
		"no directory":  {v1.TerminalRequest{Cwd: "/no/such/folder"}, "cwd"},
	} {
		_, err := s.Client.OpenTerminal(ctx, id, c.req, client.TerminalOptions{})
		var p *v1.Problem
		if !errors.As(err, &p) || p.Field != c.field {
			t.Errorf("OpenTerminal with %s: %v, want an error of field %s", name, err, c.field)
		}
	}
	if list, err := s.Client.Shells(ctx, id); err != nil || len(list) != 0 {
		t.Errorf("Shells after refused requests = %+v, %v; want none", list, err)
	}
	sh, err := s.Client.StartShell(ctx, id, v1.ShellRequest{Exec: v1.Exec{Argv: []string{"sleep", "1000"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Client.KillShell(ctx, sh.ID, 0, true)
	if _, err := s.Client.AttachTerminal(ctx, sh.ID, client.TerminalOptions{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("AttachTerminal to a shell without a terminal: %v, want failed precondition", err)
	}
	if _, err := s.Client.AttachTerminal(ctx, "nope", client.TerminalOptions{}); !errdefs.IsNotFound(err) {
		t.Errorf("AttachTerminal to an unknown shell: %v, want not found", err)
	}
	c := openTerminal(t, s, id, v1.TerminalRequest{Argv: []string{"cat"}})
	s.Ask(t, "POST", "/v1/shells/"+c.Shell()+"/input?close=true", "x").
		Problem(t, 400, "invalid_argument", "close")
	if a := s.Ask(t, "POST", "/v1/shells/"+c.Shell()+"/input", "typed\r"); a.Status != 204 {
		t.Errorf("POST input: status %d, want 204: %s", a.Status, a.Body)
	}
	c.sees("typed\r\n")
	// The same key opens the same terminal.
	cat, key := v1.TerminalRequest{Argv: []string{"cat"}}, client.IdempotencyKey("tty"+id)
	one := must(t)(s.Client.OpenTerminal(ctx, id, cat, client.TerminalOptions{}, key))
	defer one.Close()
	two := must(t)(s.Client.OpenTerminal(ctx, id, cat, client.TerminalOptions{}, key))
	defer two.Close()
	defer s.Client.KillShell(ctx, one.Shell(), 0, true)
	if one.Shell() != two.Shell() {
		t.Errorf("two requests with one key opened %s and %s, want one terminal", one.Shell(), two.Shell())
	}
}

// TestTerminalsSurviveRestart stops and kills the service while a terminal is open. Its client must
// reconnect; no output may be lost or repeated, and input that is sent without a server must
// arrive. Input that is sent after an orderly stop arrives, too. After a kill, input in transit may
// be lost until the client has noticed.
func TestTerminalsSurviveRestart(t *testing.T) {
	t.Parallel()
	onServerAllRuntimes(t, onDemand, func(t *testing.T, s *harness.Server) {
		id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
		command := "stty -echo; echo ready; i=0; while read x; do i=$((i+1)); echo $i:$x; done"
		away := make(chan error, 1)
		term, err := s.Client.OpenTerminal(t.Context(), id,
			v1.TerminalRequest{Command: command, SpoolBytes: 1 << 20},
			client.TerminalOptions{Away: func(err error) { away <- err }})
		c := newScreen(t, term, err)
		c.sees("ready\r\n")
		want, n := "ready\r\n", 0
		typeWord := func(word string) {
			n++
			c.types(word + "\r")
			want += fmt.Sprintf("%d:%s\r\n", n, word)
		}
		for _, stop := range []struct {
			do      func()
			orderly bool
		}{{s.Term, true}, {s.Kill9, false}, {s.Term, true}} {
			code := closeCode(t, s, id, c.Shell())
			typeWord("before")
			c.sees(want)
			stop.do()
			if got := <-code; got >= 0 && got != 1012 {
				t.Errorf("connection closed with code %d, want 1012", got)
			}
			if !stop.orderly {
				<-away
			}
			typed := make(chan struct{})
			go func() { defer close(typed); typeWord("away") }() // Write waits for a connection
			s.Start()
			<-typed
			c.sees(want)
			if stop.orderly {
				<-away
			}
		}
		c.types("\x04")
		if got := c.ends(); got != want {
			t.Errorf("terminal showed %q, want %q", got, want)
		}
	})
}
