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
		tb.Fatalf("output failed: %v", a.failure)
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
			t.Fatalf("got %q, %+v", a.data.String(), end)
		}
		if again := start(t, s, wire.Command{Argv: []string{"false"}}); !again.StartedAt.Equal(sh.StartedAt) ||
			again.Argv[0] != "sh" {
			t.Errorf("the same id started %+v", again)
		}
		k := dial(t, s, wire.OpInput, wire.ShellRef{ID: sh.ID})
		if err := k.c.WriteFrame(wire.KindStdin, []byte("x y\n")); err != nil {
			t.Fatal(err)
		}
		k.nc.Close() // leaves the input open
		a, end = output(t, s, wire.Output{ID: sh.ID, Offset: 4, Follow: true})
		if a.data.String() != "two x y\n" || !end.EOF || end.Next != 12 || a.chunks[0] != 4 {
			t.Errorf("got %q, %+v", a.data.String(), end)
		}
		eventually(t, "the shell has a result",
			func() bool { return ask[wire.Shell](t, s, wire.OpShell, wire.ShellRef{ID: sh.ID}).Result != nil })
		got := ask[wire.Shell](t, s, wire.OpShell, wire.ShellRef{ID: sh.ID})
		wantEnding(t, *got.Result, runtime.Exited, 4)
		if got.Stdout != (wire.Span{End: 12}) || got.Stderr != (wire.Span{End: 4}) {
			t.Errorf("spans are %+v", got)
		}
		a, end = output(t, s, wire.Output{ID: sh.ID, Stream: wire.Stderr, Limit: 2})
		if a.data.String() != "er" || end.Next != 2 || end.EOF {
			t.Errorf("got %q, %+v", a.data.String(), end)
		}
		if list := ask[[]wire.Shell](t, s, wire.OpShells, nil); len(list) != 1 || list[0].ID != sh.ID {
			t.Errorf("list is %+v", list)
		}
		ask[struct{}](t, s, wire.OpForget, wire.ShellRef{ID: sh.ID})
		for _, op := range []wire.Op{wire.OpShell, wire.OpForget, wire.OpOutput, wire.OpKill, wire.OpInput} {
			if f := dial(t, s, op, wire.ShellRef{ID: sh.ID}).all().failure; f == nil || f.Code != wire.NotFound ||
				f.Field != "id" {
				t.Errorf("%s of a forgotten shell: %v", op, f)
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
			t.Fatalf("got %d bytes, %v, %+v", a.data.Len(), a.chunks, end)
		}
		if !bytes.Equal(a.data.Bytes(), want.Bytes()[a.chunks[0]:]) || a.data.Len() > 64<<10 || a.data.Len() < 32<<10 {
			t.Errorf("%d bytes from %d on are not what was written", a.data.Len(), a.chunks[0])
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
				t.Fatalf("gap from %d to %d", got.Len(), a.chunks[0])
			}
			got.Write(a.data.Bytes())
			if !done {
				continue
			}
			var end wire.OutputEnd
			if err := json.Unmarshal(a.reply, &end); err != nil {
				t.Fatal(err, a.failure)
			}
			if end.EOF {
				break
			}
		}
		if want := bytes.Repeat([]byte("123456789\n"), size/10+1)[:size]; !bytes.Equal(got.Bytes(), want) {
			t.Errorf("got %d bytes, not what was written", got.Len())
		}
		a, _ := output(t, s, wire.Output{ID: start(t, s,
			wire.Command{ID: "2", Argv: []string{"sh", "-c", "yes | head -c 5000000"}, Wait: true}).ID, Follow: true})
		if a.data.Len() != 5_000_000 {
			t.Errorf("followed %d bytes", a.data.Len())
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
			t.Errorf("got %+v, %+v", got.Result, got.Stdout)
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
			t.Errorf("forget of a running shell: %v", f)
		}
		other := start(t, s, wire.Command{ID: "other", Argv: []string{"sleep", "8556"}})
		for range 2 { // idempotent
			got := ask[wire.Shell](t, s, wire.OpKill, wire.Kill{ID: sh.ID, Grace: 50 * time.Millisecond})
			if got.Result == nil || got.Result.Ending != runtime.Cancelled || got.Result.Unclean {
				t.Errorf("got %+v", got.Result)
			}
			nothingLeft(t, "8555")
		}
		if ask[wire.Shell](t, s, wire.OpShell, wire.ShellRef{ID: other.ID}).Result != nil || len(withMarker(t, "8556")) == 0 {
			t.Error("another shell died too")
		}
		soft := start(t, s, wire.Command{ID: "soft",
			Argv: []string{"sh", "-c", "trap 'echo bye; exit 5' TERM; echo hi; while :; do sleep 0.05; done"}})
		output(t, s, wire.Output{ID: soft.ID, Wait: maxWait})
		got := ask[wire.Shell](t, s, wire.OpKill, wire.Kill{ID: soft.ID, Grace: maxGrace})
		if got.Result == nil || got.Result.Ending != runtime.Cancelled || got.Result.ExitCode != 5 {
			t.Errorf("got %+v", got.Result)
		}
		if a, _ := output(t, s, wire.Output{ID: soft.ID}); a.data.String() != "hi\nbye\n" {
			t.Errorf("got %q", a.data.String())
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
			t.Fatal(f)
		}
		a, end := output(t, s, wire.Output{ID: sh.ID, Follow: true})
		if a.data.String() != "abc" || !end.EOF {
			t.Errorf("got %q, %+v", a.data.String(), end)
		}
		none := start(t, s, wire.Command{ID: "none", Argv: []string{"sleep", "8557"}})
		if f := dial(t, s, wire.OpInput, wire.ShellRef{ID: none.ID}).all().failure; f == nil ||
			f.Code != wire.FailedPrecondition {
			t.Errorf("input without stdin: %v", f)
		}
	})
}

func TestFailedStartLeavesNoShell(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		for _, cmd := range []wire.Command{{ID: "x", Argv: []string{"no-such-program"}},
			{ID: "x", Argv: []string{"true"}, User: "root"}, {Argv: []string{"true"}}} {
			if f := dial(t, s, wire.OpStart, cmd).all().failure; f == nil || f.Field == "" {
				t.Errorf("start of %v: %v; want a failure that names a field", cmd, f)
			}
		}
		if p := ask[wire.Pong](t, s, wire.OpPing, nil); p.Shells != 0 || p.Commands != 0 || s.spools.Used() != 0 {
			t.Errorf("kept: %+v, %d bytes", p, s.spools.Used())
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
				t.Errorf("output %+v: %v; want InvalidArgument of field %s", o.Output, f, o.field)
			}
		}
		// A wait without output ends on its own.
		a, end := output(t, s, wire.Output{ID: sh.ID, Wait: 50 * time.Millisecond})
		if a.data.Len() != 0 || end.Next != 0 || end.EOF {
			t.Errorf("got %q, %+v", a.data.String(), end)
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
		t.Errorf("got %v", f)
	}
}
