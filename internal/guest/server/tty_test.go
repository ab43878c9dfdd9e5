package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// screen is a terminal under test.
type screen struct {
	t     *testing.T
	s     *Server
	id    string
	keys  *call
	typed int64
}

func onScreen(t *testing.T, s *Server, cmd wire.Command) *screen {
	t.Helper()
	if cmd.TTY == nil {
		cmd.TTY = &wire.TTY{}
	}
	return &screen{t: t, s: s, id: start(t, s, cmd).ID}
}

func bash() wire.Command {
	return wire.Command{Argv: []string{"bash", "--norc", "--noprofile"},
		Env: map[string]string{"PS1": "$ ", "HISTFILE": ""}}
}

// press types text and waits until the terminal has accepted it.
func (c *screen) press(text string) {
	c.t.Helper()
	if c.keys == nil {
		c.keys = dial(c.t, c.s, wire.OpInput, wire.ShellRef{ID: c.id})
	}
	if err := c.keys.c.WriteFrame(wire.KindStdin, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
	c.typed += int64(len(text))
	kind, p, err := c.keys.c.ReadFrame()
	var taken wire.Chunk
	if err != nil || kind != wire.KindChunk || json.Unmarshal(p, &taken) != nil || taken.Offset != c.typed {
		c.t.Fatalf("typed %q: frame %q %s, %v; want a chunk with offset %d", text, byte(kind), p, err, c.typed)
	}
}

// shown returns all kept output.
func (c *screen) shown() string {
	c.t.Helper()
	a, _ := output(c.t, c.s, wire.Output{ID: c.id})
	return a.data.String()
}

// sees waits until the output contains text.
func (c *screen) sees(text string) {
	c.t.Helper()
	last := ""
	for end := time.Now().Add(bound); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if last = c.shown(); strings.Contains(last, text) {
			return
		}
	}
	c.t.Fatalf("the terminal shows %q, want %q in it", last, text)
}

// ends waits for the ending and returns it with the complete output.
func (c *screen) ends() (string, runtime.Result) {
	c.t.Helper()
	a, end := output(c.t, c.s, wire.Output{ID: c.id, Follow: true})
	if !end.EOF || end.Shell.Result == nil {
		c.t.Fatalf("the output ended as %+v, want its end and a result", end)
	}
	return a.data.String(), *end.Shell.Result
}

func TestTerminalBelongsToCommand(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		c := onScreen(t, s, wire.Command{
			Argv: []string{"sh", "-c", `test -t 0 && test -t 1 && test -t 2 && echo three
				stty size; echo "$TERM/${COLUMNS-no}/${LINES-no}"; ps -o sid= -p $$ | tr -d ' ' | grep -qx $$ && echo leads
				cat /dev/null > $(tty) && stat -c %u $(tty); echo err >&2; echo through > /dev/tty; exit 3`},
			TTY: &wire.TTY{Cols: 132, Rows: 50},
		})
		text, r := c.ends()
		wantEnding(t, r, runtime.Exited, 3)
		want := "three\r\n50 132\r\nxterm-256color/no/no\r\nleads\r\n1000\r\nerr\r\nthrough\r\n"
		if text != want {
			t.Errorf("the terminal shows %q, want %q", text, want)
		}
		got := ask[wire.Shell](t, s, wire.OpShell, wire.ShellRef{ID: c.id})
		if got.TTY == nil || got.TTY.Term != wire.DefaultTerm {
			t.Errorf("the state of the terminal is %+v, want term %q", got.TTY, wire.DefaultTerm)
		}
	})
}

func TestTermComesFromCaller(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		c := onScreen(t, s, wire.Command{Argv: []string{"sh", "-c", "echo $TERM"}, TTY: &wire.TTY{Term: "vt100"}})
		if text, _ := c.ends(); text != "vt100\r\n" {
			t.Errorf(`TERM is %q, want "vt100\r\n"`, text)
		}
	})
}

func TestJobControl(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		c := onScreen(t, s, bash())
		c.sees("$ ")
		c.press("sleep 4711\r")
		var pids []int
		eventually(t, "sleep runs", func() bool { pids = withMarker(t, "4711"); return len(pids) == 1 })
		c.press("\x1a") // Ctrl-Z
		c.sees("Stopped")
		c.press("fg\r")
		// bash prints its name before it gives it the terminal and continues it.
		eventually(t, "it goes on",
			func() bool { return strings.Count(c.shown(), "sleep 4711\r\n") == 3 && !isStopped(t, pids[0]) })
		c.press("\x03") // Ctrl-C
		eventually(t, "sleep is gone", func() bool { return len(withMarker(t, "4711")) == 0 })
		c.press("echo code=$?\r")
		c.sees("code=130\r\n")
		c.press("exit 5\r")
		_, r := c.ends()
		wantEnding(t, r, runtime.Exited, 5)
	})
}

// isStopped reads proc_pid_stat(5).
func isStopped(t *testing.T, pid int) bool {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.HasPrefix(text[bytes.LastIndexByte(text, ')')+1:], []byte(" T"))
}

func TestResizeReachesCommand(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		c := onScreen(t, s, wire.Command{Argv: []string{"bash", "-c",
			`trap 'stty size' WINCH; echo ready; while :; do sleep 0.02; done`}})
		c.sees("ready")
		ask[struct{}](t, s, wire.OpResize, wire.Resize{ID: c.id, Cols: 101, Rows: 33})
		c.sees("33 101\r\n")
		if got := ask[wire.Shell](t, s, wire.OpShell, wire.ShellRef{ID: c.id}); got.TTY.Cols != 101 || got.TTY.Rows != 33 {
			t.Errorf("the state of the terminal is %+v, want 101 columns and 33 rows", got.TTY)
		}
		for _, z := range []wire.Resize{{ID: c.id, Rows: 1}, {ID: c.id, Cols: 1, Rows: -1},
			{ID: c.id, Cols: wire.MaxCells + 1, Rows: 1}} {
			if f := dial(t, s, wire.OpResize, z).all().failure; f == nil || f.Code != wire.InvalidArgument || f.Field == "" {
				t.Errorf("resize to %+v: %s, want invalid_argument of a field", z, describe(f))
			}
		}
		ask[wire.Shell](t, s, wire.OpKill, wire.Kill{ID: c.id})
		if f := dial(t, s, wire.OpResize, wire.Resize{ID: c.id, Cols: 1, Rows: 1}).all().failure; f == nil ||
			f.Code != wire.FailedPrecondition {
			t.Errorf("resize of an ended shell: %s, want failed_precondition", describe(f))
		}
	})
}

func TestTerminalOutputIsComplete(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		c := onScreen(t, s, wire.Command{Argv: []string{"seq", "100000"}})
		var want bytes.Buffer
		for i := range 100000 {
			fmt.Fprintf(&want, "%d\r\n", i+1)
		}
		text, r := c.ends()
		wantEnding(t, r, runtime.Exited, 0)
		if text != want.String() {
			t.Errorf("%d bytes, want %d; the end is %q", len(text), want.Len(), tail([]byte(text)))
		}
	})
}

func TestConcurrentTerminalInput(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		c := onScreen(t, s, wire.Command{Argv: []string{"cat"}})
		d := &screen{t: t, s: s, id: c.id}
		c.press("one\r")
		d.press("two\r")
		c.press("three\r")
		eventually(t, "all is there twice", func() bool { return strings.Count(c.shown(), "three") == 2 })
		d.press("\x04")
		text, r := c.ends()
		wantEnding(t, r, runtime.Exited, 0)
		for _, word := range []string{"one", "two", "three"} {
			if strings.Count(text, word) != 2 {
				t.Errorf("%q has %q %d times, want 2", text, word, strings.Count(text, word))
			}
		}
	})
}

func TestUnreadInputBlocksNoOtherStream(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		c := onScreen(t, s, wire.Command{Argv: []string{"sh", "-c", "stty raw -echo; echo ready; sleep 1000"}})
		c.sees("ready")
		stuck := dial(t, s, wire.OpInput, wire.ShellRef{ID: c.id})
		if err := stuck.c.WriteFrame(wire.KindStdin, bytes.Repeat([]byte("x"), wire.MaxFrame)); err != nil {
			t.Fatal(err)
		}
		waiting := dial(t, s, wire.OpInput, wire.ShellRef{ID: c.id})
		if err := waiting.c.WriteFrame(wire.KindStdin, bytes.Repeat([]byte("y"), wire.MaxFrame)); err != nil {
			t.Fatal(err)
		}
		ask[struct{}](t, s, wire.OpResize, wire.Resize{ID: c.id, Cols: 7, Rows: 7})
		stuck.nc.Close()                                               // frees its turn
		got := ask[wire.Shell](t, s, wire.OpKill, wire.Kill{ID: c.id}) // ends the other one's wait
		wantEnding(t, *got.Result, runtime.Cancelled, -1)
		for {
			kind, _, err := waiting.c.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if kind == wire.KindFailure {
				break
			}
		}
	})
}

func TestKillReachesProcessesOutsideSession(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		c := onScreen(t, s, wire.Command{Argv: []string{"bash", "-c",
			"setsid -f sleep 4712; nohup sleep 4712 & echo ready; wait"}})
		c.sees("ready")
		eventually(t, "both run", func() bool { return len(withMarker(t, "4712")) >= 2 })
		got := ask[wire.Shell](t, s, wire.OpKill, wire.Kill{ID: c.id})
		wantEnding(t, *got.Result, runtime.Cancelled, -1)
		if left := withMarker(t, "4712"); len(left) > 0 {
			t.Errorf("processes %v are alive after the kill, want none", left)
		}
	})
}

// A command may close its terminal and open it again.
func TestTerminalCanBeReopened(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		c := onScreen(t, s, wire.Command{Argv: []string{"sh", "-c",
			`exec </dev/null >/dev/null 2>&1; sleep 0.1; echo back >/dev/tty; sleep 0.1; echo again >/dev/tty`}})
		if text, _ := c.ends(); text != "back\r\nagain\r\n" {
			t.Errorf(`the terminal shows %q, want "back\r\nagain\r\n"`, text)
		}
	})
}

func TestInvalidTerminalRequests(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		for name, c := range map[string]struct {
			tty   wire.TTY
			field string
		}{
			"a term with a space":   {wire.TTY{Term: "xterm 256"}, "term"},
			"a long term":           {wire.TTY{Term: strings.Repeat("x", wire.MaxTerm+1)}, "term"},
			"negative columns":      {wire.TTY{Cols: -1}, "cols"},
			"too many rows":         {wire.TTY{Rows: wire.MaxCells + 1}, "rows"},
			"a term that is a path": {wire.TTY{Term: "../x"}, "term"},
		} {
			f := dial(t, s, wire.OpStart, wire.Command{ID: "no", Argv: []string{"true"}, TTY: &c.tty}).all().failure
			if f == nil || f.Code != wire.InvalidArgument || f.Field != c.field {
				t.Errorf("start with %s: %s, want invalid_argument of field %s", name, describe(f), c.field)
			}
		}
		if f := dial(t, s, wire.OpExec, wire.Command{Argv: []string{"true"}, TTY: &wire.TTY{}}).all().failure; f == nil ||
			f.Field != "tty" {
			t.Errorf("exec with a terminal: %s, want a failure of field tty", describe(f))
		}
		f := dial(t, s, wire.OpStart,
			wire.Command{ID: "no", Argv: []string{"no-such-program"}, TTY: &wire.TTY{}}).all().failure
		if f == nil || f.Code != wire.NotFound || f.Field != "argv" {
			t.Errorf("start of a missing program: %s, want not_found of field argv", describe(f))
		}
		c := onScreen(t, s, wire.Command{Argv: []string{"cat"}})
		k := dial(t, s, wire.OpInput, wire.ShellRef{ID: c.id})
		if err := k.c.WriteFrame(wire.KindEOF, nil); err != nil {
			t.Fatal(err)
		}
		if f := k.all().failure; f == nil || f.Code != wire.InvalidArgument {
			t.Errorf("end of a terminal's input: %s, want invalid_argument", describe(f))
		}
	})
}

func TestEndedTerminalsCloseDescriptors(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		before := -1
		for i := range 20 {
			c := onScreen(t, s, wire.Command{ID: fmt.Sprint(i), Argv: []string{"true"}})
			c.ends()
			eventually(t, "its descriptors are closed", func() bool {
				now := terminals(t)
				if before < 0 {
					before = now
				}
				return now <= before
			})
		}
	})
}

// terminals returns the number of open terminal descriptors of this process.
func terminals(t *testing.T) (n int) {
	t.Helper()
	for fd := range 1024 {
		if _, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err == nil {
			n++
		}
	}
	return n
}
