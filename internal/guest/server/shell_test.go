package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// start starts a shell. The test's cleanup kills and forgets it.
func start(tb testing.TB, s *Server, cmd wire.Command) wire.Shell {
	tb.Helper()
	cmd.ID = strings.ReplaceAll(tb.Name(), "/", ".") + "." + cmd.ID
	sh := ask[wire.Shell](tb, s, wire.OpStart, cmd)
	tb.Cleanup(func() {
		if dial(tb, s, wire.OpKill, wire.Kill{ID: sh.ID}).all().failure == nil {
			dial(tb, s, wire.OpForget, wire.ShellRef{ID: sh.ID}).all()
		}
	})
	return sh
}

func output(tb testing.TB, s *Server, o wire.Output) (*answer, wire.OutputEnd) {
	tb.Helper()
	if o.Stream == "" {
		o.Stream = wire.Stdout
	}
	a := dial(tb, s, wire.OpOutput, o).all()
	if a.failure != nil {
		tb.Fatalf("output: %s, want no failure", describe(a.failure))
	}
	var end wire.OutputEnd
	if err := json.Unmarshal(a.reply, &end); err != nil {
		tb.Fatal(err)
	}
	return a, end
}

func TestShellOutputIsReadByOffset(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		sh := start(t, s, wire.Command{Argv: []string{"sh", "-c", "echo one; echo err >&2; read x; echo two $x; exit 4"},
			Stdin: true})
		a, end := output(t, s, wire.Output{ID: sh.ID, Wait: maxWait})
		if a.data.String() != "one\n" || end.Next != 4 || end.EOF || end.Shell.Result != nil {
			t.Fatalf(`the first output is %q, %+v; want "one\n", next 4 and no end`, a.data.String(), end)
		}
		if again := start(t, s, wire.Command{Argv: []string{"false"}}); !again.StartedAt.Equal(sh.StartedAt) ||
			again.Argv[0] != "sh" {
			t.Errorf("start with the id of a shell = %+v, want that shell", again)
		}
		k := dial(t, s, wire.OpInput, wire.ShellRef{ID: sh.ID})
		if err := k.c.WriteFrame(wire.KindStdin, []byte("x y\n")); err != nil {
			t.Fatal(err)
		}
		k.nc.Close() // leaves the input open
		a, end = output(t, s, wire.Output{ID: sh.ID, Offset: 4, Follow: true})
		if a.data.String() != "two x y\n" || !end.EOF || end.Next != 12 || a.chunks[0] != 4 {
			t.Errorf("output from 4 on is %q in chunks %v, %+v; want %q from 4 to the end at 12",
				a.data.String(), a.chunks, end, "two x y\n")
		}
		eventually(t, "the shell has a result",
			func() bool { return ask[wire.Shell](t, s, wire.OpShell, wire.ShellRef{ID: sh.ID}).Result != nil })
		got := ask[wire.Shell](t, s, wire.OpShell, wire.ShellRef{ID: sh.ID})
		wantEnding(t, *got.Result, runtime.Exited, 4)
		if got.Stdout != (wire.Span{End: 12}) || got.Stderr != (wire.Span{End: 4}) {
			t.Errorf("the spans are %+v and %+v, want 12 bytes of stdout and 4 of stderr", got.Stdout,
				got.Stderr)
		}
		a, end = output(t, s, wire.Output{ID: sh.ID, Stream: wire.Stderr, Limit: 2})
		if a.data.String() != "er" || end.Next != 2 || end.EOF {
			t.Errorf(`stderr limited to 2 bytes is %q, %+v; want "er", next 2 and no end`, a.data.String(), end)
		}
		if list := ask[[]wire.Shell](t, s, wire.OpShells, nil); len(list) != 1 || list[0].ID != sh.ID {
			t.Errorf("the shells are %+v, want only %s", list, sh.ID)
		}
		ask[struct{}](t, s, wire.OpForget, wire.ShellRef{ID: sh.ID})
		for _, op := range []wire.Op{wire.OpShell, wire.OpForget, wire.OpOutput, wire.OpKill, wire.OpInput} {
			if f := dial(t, s, op, wire.ShellRef{ID: sh.ID}).all().failure; f == nil || f.Code != wire.NotFound ||
				f.Field != "id" {
				t.Errorf("%s of a forgotten shell: %s, want not_found of field id", op, describe(f))
			}
		}
	})
}

func TestShellReportsExactGap(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		sh := start(t, s, wire.Command{Argv: []string{"seq", "200000"}, Spool: 64 << 10})
		eventually(t, "it has ended",
			func() bool { return ask[wire.Shell](t, s, wire.OpShell, wire.ShellRef{ID: sh.ID}).Result != nil })
		var want bytes.Buffer
		for i := range 200_000 {
			fmt.Fprintln(&want, i+1)
		}
		a, end := output(t, s, wire.Output{ID: sh.ID, Offset: 100})
		if !end.EOF || end.Next != int64(want.Len()) || len(a.chunks) == 0 || a.chunks[0] <= 100 {
			t.Fatalf("output from 100 on is %d bytes in chunks %v, %+v; want a gap, and the end at %d",
				a.data.Len(), a.chunks, end, want.Len())
		}
		if !bytes.Equal(a.data.Bytes(), want.Bytes()[a.chunks[0]:]) || a.data.Len() > 64<<10 || a.data.Len() < 32<<10 {
			t.Errorf("output from %d on is %d bytes, want what was written there, 32 to 64 KiB", a.chunks[0],
				a.data.Len())
		}
	})
}

func TestWaitingShellLosesNoOutput(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		const size = 8 << 20
		sh := start(t, s, wire.Command{Argv: []string{"sh", "-c", "yes 123456789 | head -c 8388608"}, Wait: true})
		var got bytes.Buffer
		for round := 0; ; round++ {
			// Every third reader disconnects in the middle.
			k := dial(t, s, wire.OpOutput,
				wire.Output{ID: sh.ID, Stream: wire.Stdout, Offset: int64(got.Len()), Limit: 700_000, Wait: maxWait})
			a, done := &answer{}, false
			for frames := 0; !done && (round%3 != 1 || frames < 3); frames++ {
				done = k.read(a)
			}
			k.nc.Close()
			if len(a.chunks) > 0 && a.chunks[0] != int64(got.Len()) {
				t.Fatalf("output from %d on starts at %d, want no gap", got.Len(), a.chunks[0])
			}
			got.Write(a.data.Bytes())
			if !done {
				continue
			}
			var end wire.OutputEnd
			if err := json.Unmarshal(a.reply, &end); err != nil {
				t.Fatalf("end of the output: %v, %s; want a reply", err, describe(a.failure))
			}
			if end.EOF {
				break
			}
		}
		if want := bytes.Repeat([]byte("123456789\n"), size/10+1)[:size]; !bytes.Equal(got.Bytes(), want) {
			t.Errorf("read %d bytes, want the %d bytes that were written", got.Len(), size)
		}
		a, _ := output(t, s, wire.Output{ID: start(t, s,
			wire.Command{ID: "2", Argv: []string{"sh", "-c", "yes | head -c 5000000"}, Wait: true}).ID, Follow: true})
		if a.data.Len() != 5_000_000 {
			t.Errorf("the followed output is %d bytes, want %d", a.data.Len(), 5_000_000)
		}
	})
}

func TestWaitingShellEndsWithoutReader(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		var got wire.Shell
		metBy(300*time.Millisecond, func(timeout time.Duration) bool {
			sh := start(t, s, wire.Command{ID: timeout.String(), Argv: []string{"yes"}, Wait: true, Spool: 64 << 10,
				Timeout: timeout})
			eventually(t, "it has ended",
				func() bool { return ask[wire.Shell](t, s, wire.OpShell, wire.ShellRef{ID: sh.ID}).Result != nil })
			got = ask[wire.Shell](t, s, wire.OpShell, wire.ShellRef{ID: sh.ID})
			return got.Stdout.End > 0
		})
		if got.Result.Ending != runtime.Timeout || got.Stdout.Start != 0 || got.Stdout.End == 0 || got.Stdout.End > 1<<20 {
			t.Errorf("the shell ended as %+v with stdout %+v, want a timeout and 1 to %d bytes from 0 on",
				got.Result, got.Stdout, 1<<20)
		}
	})
}

func TestKillEndsAllProcessesOfShell(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		sh := start(t, s, wire.Command{Argv: []string{"sh", "-c",
			"setsid sleep 8555 & trap '' TERM; while :; do sleep 8555; done"}})
		if f := dial(t, s, wire.OpForget, wire.ShellRef{ID: sh.ID}).all().failure; f == nil ||
			f.Code != wire.FailedPrecondition {
			t.Errorf("forget of a running shell: %s, want failed_precondition", describe(f))
		}
		other := start(t, s, wire.Command{ID: "other", Argv: []string{"sleep", "8556"}})
		for range 2 { // idempotent
			got := ask[wire.Shell](t, s, wire.OpKill, wire.Kill{ID: sh.ID, Grace: 50 * time.Millisecond})
			if got.Result == nil || got.Result.Ending != runtime.Cancelled || got.Result.Unclean {
				t.Errorf("the killed shell ended as %+v, want a clean %s", got.Result, runtime.Cancelled)
			}
			nothingLeft(t, "8555")
		}
		if ask[wire.Shell](t, s, wire.OpShell, wire.ShellRef{ID: other.ID}).Result != nil || len(withMarker(t, "8556")) == 0 {
			t.Error("the kill of a shell ended another one, want it running")
		}
		soft := start(t, s, wire.Command{ID: "soft",
			Argv: []string{"sh", "-c", "trap 'echo bye; exit 5' TERM; echo hi; while :; do sleep 0.05; done"}})
		output(t, s, wire.Output{ID: soft.ID, Wait: maxWait})
		got := ask[wire.Shell](t, s, wire.OpKill, wire.Kill{ID: soft.ID, Grace: maxGrace})
		if got.Result == nil || got.Result.Ending != runtime.Cancelled || got.Result.ExitCode != 5 {
			t.Errorf("the shell that ends in the grace period ended as %+v, want %s with code 5", got.Result,
				runtime.Cancelled)
		}
		if a, _ := output(t, s, wire.Output{ID: soft.ID}); a.data.String() != "hi\nbye\n" {
			t.Errorf(`the output is %q, want "hi\nbye\n"`, a.data.String())
		}
	})
}

func TestShellInputIsClosed(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		sh := start(t, s, wire.Command{Argv: []string{"cat"}, Stdin: true})
		k := dial(t, s, wire.OpInput, wire.ShellRef{ID: sh.ID})
		for _, f := range []struct {
			kind wire.Kind
			text string
		}{{wire.KindStdin, "abc"}, {wire.KindEOF, ""}} {
			if err := k.c.WriteFrame(f.kind, []byte(f.text)); err != nil {
				t.Fatal(err)
			}
		}
		if f := k.all().failure; f != nil {
			t.Fatalf("input: %s, want no failure", describe(f))
		}
		a, end := output(t, s, wire.Output{ID: sh.ID, Follow: true})
		if a.data.String() != "abc" || !end.EOF {
			t.Errorf(`the output is %q, %+v; want "abc" and its end`, a.data.String(), end)
		}
		none := start(t, s, wire.Command{ID: "none", Argv: []string{"sleep", "8557"}})
		if f := dial(t, s, wire.OpInput, wire.ShellRef{ID: none.ID}).all().failure; f == nil ||
			f.Code != wire.FailedPrecondition {
			t.Errorf("input of a shell without stdin: %s, want failed_precondition", describe(f))
		}
	})
}

func TestFailedStartLeavesNoShell(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		for _, cmd := range []wire.Command{{ID: "x", Argv: []string{"no-such-program"}},
			{ID: "x", Argv: []string{"true"}, User: "root"}, {Argv: []string{"true"}}} {
			if f := dial(t, s, wire.OpStart, cmd).all().failure; f == nil || f.Field == "" {
				t.Errorf("start of %v: %s, want a failure of a field", cmd, describe(f))
			}
		}
		if p := ask[wire.Pong](t, s, wire.OpPing, nil); p.Shells != 0 || p.Commands != 0 || s.spools.Used() != 0 {
			t.Errorf("after failed starts, ping = %+v and %d bytes are held; want no shells, commands or bytes",
				p, s.spools.Used())
		}
	})
}

func TestInvalidOutputRequestNamesField(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		sh := start(t, s, wire.Command{Argv: []string{"sleep", "8558"}})
		for _, o := range []struct {
			wire.Output
			field string
		}{
			{wire.Output{Stream: "x"}, "stream"}, {wire.Output{Offset: -1}, "offset"}, {wire.Output{Offset: 1}, "offset"},
			{wire.Output{Limit: -1}, "limit"}, {wire.Output{Wait: -1}, "wait_ns"}, {wire.Output{Wait: time.Hour}, "wait_ns"},
		} {
			o.ID = sh.ID
			if f := dial(t, s, wire.OpOutput, o.Output).all().failure; f == nil || f.Code != wire.InvalidArgument ||
				f.Field != o.field {
				t.Errorf("output with %+v: %s, want invalid_argument of field %s", o.Output, describe(f),
					o.field)
			}
		}
		// A wait without output ends on its own.
		a, end := output(t, s, wire.Output{ID: sh.ID, Wait: 50 * time.Millisecond})
		if a.data.Len() != 0 || end.Next != 0 || end.EOF {
			t.Errorf("the output of a silent shell is %q, %+v; want nothing, next 0 and no end",
				a.data.String(), end)
		}
	})
}

func TestDisconnectEndsFollow(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		sh := start(t, s, wire.Command{Argv: []string{"sleep", "8559"}})
		k := dial(t, s, wire.OpOutput, wire.Output{ID: sh.ID, Stream: wire.Stdout, Follow: true})
		eventually(t, "the stream is served", func() bool { return s.streams.Load() > 0 })
		k.nc.Close()
		eventually(t, "the stream has ended", func() bool { return s.streams.Load() == 0 })
	})
}

func TestShellsAreLimited(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	s := testServer(t, false)
	for i := range wire.MaxShells {
		start(t, s, wire.Command{ID: fmt.Sprint(i), Argv: []string{"true"}})
	}
	f := dial(t, s, wire.OpStart, wire.Command{ID: "more", Argv: []string{"true"}}).all().failure
	if f == nil || f.Code != wire.ResourceExhausted {
		t.Errorf("start of one shell too many: %s, want resource_exhausted", describe(f))
	}
}
