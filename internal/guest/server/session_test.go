package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

var sessionIDs atomic.Int64

// testSession is a session under test.
type testSession struct {
	t  testing.TB
	s  *Server
	id string
}

func openSession(tb testing.TB, s *Server, st wire.SessionStart) *testSession {
	tb.Helper()
	if st.Shell == "" {
		st.Shell = "bash"
	}
	st.ID = fmt.Sprintf("se-%d", sessionIDs.Add(1))
	got := ask[wire.Session](tb, s, wire.OpSessionStart, st)
	if got.ID != st.ID || got.Pid <= 1 || got.Busy {
		tb.Fatalf("the session started as %+v, want id %s, a pid above 1, and not busy", got, st.ID)
	}
	tb.Cleanup(func() {
		dial(tb, s, wire.OpSessionEnd, wire.ShellRef{ID: st.ID}).all() // it may not exist any more
	})
	return &testSession{t: tb, s: s, id: st.ID}
}

// outcome is the result of a command in a session.
type outcome struct {
	wire.SessionResult
	out, err string
}

func (o outcome) String() string {
	return fmt.Sprintf("%s %d ended=%v %q %q (%s)", o.Ending, o.ExitCode, o.Ended, o.out, o.err, o.Detail)
}

func (se *testSession) dial(x wire.SessionExec) *call {
	se.t.Helper()
	x.Session = se.id
	if x.ID == "" {
		x.ID = fmt.Sprintf("c-%d", sessionIDs.Add(1))
	}
	return dial(se.t, se.s, wire.OpSessionExec, x)
}

func (se *testSession) exec(x wire.SessionExec) outcome {
	se.t.Helper()
	return outcomeOf(se.t, se.dial(x).all())
}

func outcomeOf(tb testing.TB, a *answer) outcome {
	tb.Helper()
	if a.failure != nil {
		tb.Fatalf("the command failed: %s, want a result", describe(a.failure))
	}
	o := outcome{out: a.stdout.String(), err: a.stderr.String()}
	if err := json.Unmarshal(a.reply, &o.SessionResult); err != nil {
		tb.Fatal(err)
	}
	return o
}

// marker returns a duration of about that many seconds that no other session uses.
func (se *testSession) marker(seconds int) string { return fmt.Sprintf("%d.%ss", seconds, se.id[3:]) }

func (se *testSession) run(text string) outcome {
	se.t.Helper()
	return se.exec(wire.SessionExec{Text: text, Timeout: bound})
}

// gives checks exit code and output of a command, and that the session continues.
func (se *testSession) gives(text string, code int, out string) {
	se.t.Helper()
	o := se.run(text)
	if o.Ending != runtime.Exited || o.ExitCode != code || o.Ended || out != "*" && o.out != out {
		se.t.Errorf("%s: %v, want exit %d and %q", text, o, code, out)
	}
}

func (se *testSession) isGone() {
	se.t.Helper()
	a := se.dial(wire.SessionExec{Text: "echo x"}).all()
	if a.failure == nil || a.failure.Code != wire.FailedPrecondition || !strings.Contains(a.failure.Message, "has ended") {
		se.t.Errorf("command in an ended session: %s, reply %s; want failed_precondition that says it has ended",
			describe(a.failure), a.reply)
	}
}

func TestSessionKeepsState(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		se := openSession(t, s, wire.SessionStart{Env: map[string]string{"GIVEN": "yes"}, Cwd: "/usr"})
		se.gives(`pwd; echo $GIVEN`, 0, "/usr\nyes\n")
		se.gives(`cd /tmp; x=5; export Y=6; f() { echo fn $x; }; alias hi='echo aliased'; shopt -s nullglob; trap 'echo usr' USR1`, 0, "")
		se.gives(`pwd; f; sh -c 'echo $Y'; hi there; echo /nope*; shopt nullglob; kill -USR1 $$`, 0,
			"/tmp\nfn 5\n6\naliased there\n\nnullglob       \ton\nusr\n")
		se.gives(`(exit 7)`, 7, "")
		se.gives(`echo $?`, 0, "0\n")
	})
}

func TestSessionSeparatesStreams(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		se := openSession(t, s, wire.SessionStart{})
		o := se.run(`printf 'a\0\377b'; printf 'e\0\376' >&2; false`)
		if o.out != "a\x00\xffb" || o.err != "e\x00\xfe" || o.ExitCode != 1 {
			t.Errorf(`the command gave %v, want exit 1, "a\x00\xffb" and "e\x00\xfe"`, o)
		}
		o = se.run(`head -c 3000000 /dev/zero; head -c 1000000 /dev/zero >&2`)
		if len(o.out) != 3000000 || len(o.err) != 1000000 {
			t.Errorf("the command wrote %d and %d bytes, want 3000000 and 1000000", len(o.out), len(o.err))
		}
	})
}

func TestSessionSurvivesFailingCommands(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		se := openSession(t, s, wire.SessionStart{})
		for _, c := range []struct {
			text string
			code int
			out  string
		}{
			{`echo "unbalanced`, 2, ""},
			{`echo 'unbalanced`, 2, ""},
			{`if true`, 2, ""},
			{`)`, 2, ""},
			{"cat <<EOF\nhi", 0, "hi\n"},
			{`echo a\`, 0, "*"},
			{`}`, 2, ""},
			{`set -u; echo $nope; echo after`, 1, ""},
			{`echo alive; set +u`, 0, "alive\n"},
			{`readonly r=1; r=2; echo after`, 1, ""},
			{`echo ${nope?bad}; echo after`, 1, ""},
			{`echo ${}; echo after`, 1, ""},
			{`return 5`, 5, ""},
			{`break; continue; echo x`, 0, "x\n"},
			{`exec nosuchprogram; echo x`, 0, "x\n"},
			{`nosuchprogram`, 127, ""},
			{`exec >` + workspace + `/redirected 2>&1; echo hidden`, 0, ""},
			{`echo seen`, 0, "seen\n"},
			{`exec <&- >&- 2>&-`, 0, ""},
			{`echo seen`, 0, "seen\n"},
			{`for f in /proc/$$/fd/*; do eval "exec ${f##*/}>&-"; done`, 0, ""},
			{`echo seen`, 0, "seen\n"},
			{`mkdir -p ` + workspace + `/gone && cd ` + workspace + `/gone && rmdir ` + workspace + `/gone`, 0, ""},
			{`echo seen; cd /`, 0, "seen\n"},
			{`set -o noclobber; set -f; set -x; set -v; IFS=:,`, 0, ""},
			{`echo seen`, 0, "seen\n"},
			{`set +vxf; IFS=' '; printf() { :; }; exec() { :; }; alias exit=:`, 0, ""},
			{`echo seen`, 0, "seen\n"},
			{`kill -INT $$; echo x`, 130, "*"},
			{`kill -TERM $$; kill -QUIT $$; echo x`, 0, "x\n"},
			{`cat; read x`, 1, ""},
			{`echo seen`, 0, "seen\n"},
		} {
			se.gives(c.text, c.code, c.out)
			if t.Failed() {
				return
			}
		}
	})
}

func TestSessionEndsWithShell(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		for text, code := range map[string]int{"exit 3": 3, "echo x; exit": 0, "exec sh -c 'exit 4'": 4, "kill -9 $$": -1,
			"trap 'exit 6' EXIT; exit 5": 6} {
			se := openSession(t, s, wire.SessionStart{})
			o := se.run(text)
			if !o.Ended || o.ExitCode != code || code < 0 && o.Ending != runtime.Signalled {
				t.Errorf("%s: %v, want the session ended with code %d (if negative, signalled)", text, o, code)
			}
			se.isGone()
		}
	})
}

func TestSessionTakesInput(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		se := openSession(t, s, wire.SessionStart{})
		k := se.dial(wire.SessionExec{Text: `read a; echo "<$a>"; cat`, Stdin: true, Timeout: bound})
		want := bytes.Repeat([]byte("0123456789abcdef"), 8<<10)
		if err := k.c.WriteFrame(wire.KindStdin, []byte("one\n")); err != nil {
			t.Fatal(err)
		}
		if err := k.c.WriteFrame(wire.KindStdin, want); err != nil {
			t.Fatal(err)
		}
		if err := k.c.WriteFrame(wire.KindEOF, nil); err != nil {
			t.Fatal(err)
		}
		if o := outcomeOf(t, k.all()); o.out != "<one>\n"+string(want) {
			t.Errorf("the command wrote %d bytes, want <one> and the %d bytes of its input", len(o.out),
				len(want))
		}
		k = se.dial(wire.SessionExec{Text: `cat`, Stdin: true, Timeout: bound}) // immediately after its end
		if err := k.c.WriteFrame(wire.KindEOF, nil); err != nil {
			t.Fatal(err)
		}
		if o := outcomeOf(t, k.all()); o.ExitCode != 0 || o.out != "" {
			t.Errorf("cat of an empty input gave %v, want exit 0 without output", o)
		}
		k = se.dial(wire.SessionExec{Text: `echo nobody reads`, Stdin: true, Timeout: bound})
		if err := k.c.WriteFrame(wire.KindStdin, want); err != nil {
			t.Fatal(err)
		}
		if o := outcomeOf(t, k.all()); o.out != "nobody reads\n" {
			t.Errorf(`the command gave %v, want output "nobody reads\n"`, o)
		}
		se.gives("echo next", 0, "next\n")
	})
}

func TestSessionInterruptIsPrompt(t *testing.T) {
	bothAtOnce(t, func(t *testing.T, s *Server) {
		t.Helper()
		se := openSession(t, s, wire.SessionStart{})
		for i, text := range []string{
			`while :; do :; done`,
			`f() { while :; do :; done; }; f; echo not reached`,
			`while :; do sleep 0.01; done`,
			`sleep 1000`,
			`sleep 1000 | cat`,
			`sh -c 'trap "" INT TERM; while :; do sleep 1; done'`,
			`f=fifo$$; rm -f $f; mkfifo $f; read x <$f`,
			`for i in 1 2 3; do setsid sh -c 'sleep 1000' & done; wait`,
			`kill -STOP $$`,
			`x=$(sleep 1000); echo not reached`,
		} {
			marker := fmt.Sprintf("kept-%s-%d", se.id, i)
			se.gives(fmt.Sprintf("kept=%s", marker), 0, "")
			var o outcome
			metBy(150*time.Millisecond, func(timeout time.Duration) bool {
				o = se.exec(wire.SessionExec{Text: "echo begin; " + text, Timeout: timeout})
				return o.out != "" || o.Ended
			})
			if o.Ending != runtime.Timeout || o.ExitCode != -1 || o.Ended || o.out != "begin\n" {
				t.Errorf(`%s: %v, want a timeout with code -1, output "begin\n" and a live session`, text, o)
			}
			if o.Duration > bound {
				t.Errorf("%s took %v, want at most %v", text, o.Duration, bound)
			}
			se.gives("echo $kept", 0, marker+"\n")
			if t.Failed() {
				return
			}
		}
		eventually(t, "nothing sleeps", func() bool { return len(withMarker(t, "1000")) == 0 })
	})
}

func TestUnresponsiveSessionIsKilled(t *testing.T) {
	bothAtOnce(t, func(t *testing.T, s *Server) {
		t.Helper()
		se := openSession(t, s, wire.SessionStart{})
		se.gives(`trap '' INT`, 0, "")
		o := se.exec(wire.SessionExec{Text: `while :; do :; done`, Timeout: 100 * time.Millisecond})
		if o.Ending != runtime.Timeout || !o.Ended || !strings.Contains(o.Detail, "killed") {
			t.Errorf("the command gave %v, want a timeout, and an ended session that was killed", o)
		}
		se.isGone()
	})
}

func TestSessionKeepsBackgroundProcesses(t *testing.T) {
	bothAtOnce(t, func(t *testing.T, s *Server) {
		t.Helper()
		se := openSession(t, s, wire.SessionStart{})
		marker := se.marker(3141)
		began := time.Now()
		se.gives(`sleep `+marker+` & echo started`, 0, "started\n")
		if took := time.Since(began); took > bound {
			t.Errorf("the command took %v, want at most %v", took, bound)
		}
		se.gives(`(sleep 0.3; echo late; sleep `+marker+`) & while :; do echo loud; sleep 0.01; done & echo two`, 0, "*")
		se.gives(`sleep 0.5; echo clean`, 0, "clean\n")
		eventually(t, "both sleep in the background", func() bool { return len(withMarker(t, marker)) >= 2 })
		// An interrupt kills only the processes of the command.
		o := se.exec(wire.SessionExec{Text: `sleep 1` + marker, Timeout: 100 * time.Millisecond})
		if o.Ending != runtime.Timeout || o.Ended {
			t.Errorf("the command gave %v, want a timeout and a live session", o)
		}
		if n := len(withMarker(t, marker)); n < 2 {
			t.Errorf("%d background processes are alive, want at least 2", n)
		}
		se.gives(`jobs -p | wc -l; kill %1; wait %1`, 143, "*")
		ask[wire.Session](t, s, wire.OpSessionEnd, wire.ShellRef{ID: se.id})
		nothingLeft(t, marker)
		nothingLeft(t, "echo loud")
	})
}

func TestSessionSerializesCommands(t *testing.T) {
	bothAtOnce(t, func(t *testing.T, s *Server) {
		t.Helper()
		se := openSession(t, s, wire.SessionStart{})
		first := se.dial(wire.SessionExec{Text: `read go; x=set`, Stdin: true, Timeout: bound})
		first.untilStarted()
		if a := se.dial(wire.SessionExec{Text: `echo no`}).all(); a.failure == nil ||
			a.failure.Code != wire.ResourceExhausted || !strings.Contains(a.failure.Message, "busy") {
			t.Errorf("command in a busy session: %s, reply %s; want resource_exhausted that says busy",
				describe(a.failure), a.reply)
		}
		if a := se.dial(wire.SessionExec{Text: `echo no`, Wait: 10 * time.Millisecond}).all(); a.failure == nil {
			t.Errorf("command in a busy session: reply %s, want a failure", a.reply)
		}
		second := se.dial(wire.SessionExec{Text: `echo $x`, Wait: bound, Timeout: bound})
		eventually(t, "the second waits", func() bool {
			return slices.ContainsFunc(ask[[]wire.Session](t, s, wire.OpSessions, nil),
				func(w wire.Session) bool { return w.ID == se.id && w.Waiting == 1 })
		})
		if err := first.c.WriteFrame(wire.KindStdin, []byte("now\n")); err != nil {
			t.Fatal(err)
		}
		if o := outcomeOf(t, second.all()); o.out != "set\n" {
			t.Errorf(`the second command gave %v, want output "set\n"`, o)
		}
		first.all()
	})
}

func TestSessionCommandEndsWithStream(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		se := openSession(t, s, wire.SessionStart{})
		k := se.dial(wire.SessionExec{Text: `sleep 27.18`})
		k.untilStarted()
		k.nc.Close()
		if o := outcomeOf(t, se.dial(wire.SessionExec{Text: `echo alive`, Wait: bound}).all()); o.out != "alive\n" {
			t.Errorf(`the next command gave %v, want output "alive\n"`, o)
		}
		nothingLeft(t, "27.18")
	})
}

func TestSessionStopsAtOutputLimit(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		se := openSession(t, s, wire.SessionStart{})
		o := se.exec(wire.SessionExec{Text: `while :; do echo x; done`, OutputLimit: 100, Timeout: bound})
		if o.Ending != runtime.OutputLimit || len(o.out) != 100 || o.Ended {
			t.Errorf("the command gave %v, want %s after 100 bytes and a live session", o, runtime.OutputLimit)
		}
		se.gives("echo next", 0, "next\n")
	})
}

func TestSessionCannotBeForged(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		// A command that writes to the control FIFO that it finds can break only its own session.
		se := openSession(t, s, wire.SessionStart{})
		other := openSession(t, s, wire.SessionStart{})
		o := se.run(`for f in $(tr '\0' '\n' </proc/$$/cmdline) ${BASH_SOURCE%/*}/*; do ` +
			`[ -w "$f" ] && echo garbage >"$f"; done; sleep 0.2; exit 9`)
		if o.Ending == runtime.Exited && o.ExitCode == 0 {
			t.Errorf("the command gave %v, want no exit with code 0", o)
		}
		if o := se.dial(wire.SessionExec{Text: "echo x", Timeout: bound}).all(); o.failure == nil &&
			o.stdout.String() != "x\n" {
			t.Errorf(`the broken session wrote %q and replied %s, want "x\n" or a failure`, o.stdout.String(),
				o.reply)
		}
		other.gives("echo whole", 0, "whole\n")
		a := se.dial(wire.SessionExec{Text: `ls ` + workspace + `/sh`, Timeout: bound}).all()
		if a.stdout.Len() > 0 {
			t.Errorf("ls of the sessions' directory wrote %q, want nothing", a.stdout.String())
		}
	})
}

func TestSessionInPlainSh(t *testing.T) {
	bothAtOnce(t, func(t *testing.T, s *Server) {
		t.Helper()
		se := openSession(t, s, wire.SessionStart{Shell: "sh"})
		se.gives(`cd /usr; x=5; f() { echo fn $x; }`, 0, "")
		se.gives(`pwd; f`, 0, "/usr\nfn 5\n")
		se.gives(`echo 'unbalanced`, 2, "")
		se.gives(`set -u; echo $nope; echo after`, 2, "")
		se.gives(`set +u; exec >/dev/null; echo hidden`, 0, "")
		se.gives(`echo seen`, 0, "seen\n")
		for _, text := range []string{`while :; do :; done`, `sleep 1000`} {
			o := se.exec(wire.SessionExec{Text: text, Timeout: 200 * time.Millisecond})
			if o.Ending != runtime.Timeout || o.Ended {
				t.Errorf("%s: %v, want a timeout and a live session", text, o)
			}
			se.gives(`echo $x`, 0, "5\n")
		}
		if o := se.run("exit 3"); !o.Ended || o.ExitCode != 3 {
			t.Errorf("exit 3 gave %v, want the session ended with code 3", o)
		}
	})
}

func TestSessionSurvivesManyInterrupts(t *testing.T) {
	bothAtOnce(t, func(t *testing.T, s *Server) {
		t.Helper()
		for _, shell := range []string{"bash", "sh"} {
			manyInterrupts(t, openSession(t, s, wire.SessionStart{Shell: shell}))
		}
	})
}

func manyInterrupts(t *testing.T, se *testSession) {
	t.Helper()
	marker := se.marker(27)
	for i := range 60 {
		k := se.dial(wire.SessionExec{Text: []string{`sleep ` + marker, `:`, `while :; do :; done`, `echo x | cat`}[i%4],
			Wait: bound})
		k.untilStarted()
		time.Sleep(time.Duration(i*37%200) * 10 * time.Microsecond)
		k.nc.Close()
		a := se.dial(wire.SessionExec{Text: `echo alive`, Wait: bound}).all()
		if a.failure != nil || a.stdout.String() != "alive\n" {
			t.Fatalf(`after interrupt %d: %s, reply %s, output %q; want "alive\n"`, i, describe(a.failure),
				a.reply, a.stdout.String())
		}
	}
	nothingLeft(t, marker)
}

// After any text, the session continues with the next command. A syntax error of bash does not
// count as success.
func TestSessionSurvivesAnyText(t *testing.T) {
	pieces := []string{
		"'", `"`, "`", "$(", ")", "(", "{ ", "; }", "<<E\n", "E\n", "\n", "if ", "then ", "fi\n", "case x in ", "x) ",
		";;", "esac\n", "&&", "||", "|", ";", "&", `\`, "#", "true ", "false ",
		"for i in 1; do ", "done\n", "while false; do ", "${", "}", "$((", "))", "[[ ", "]] ", "f() ", "x=", "x=(",
		"<", ">", "!", "$'", "\t", "\xff", "\r", "function ", "coproc ", "select ", "time ", "until ",
	}
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		random := rand.New(rand.NewPCG(1, 2))
		se := openSession(t, s, wire.SessionStart{Cwd: workspace})
		for range 150 {
			var text strings.Builder
			for range 1 + random.IntN(12) {
				text.WriteString(pieces[random.IntN(len(pieces))])
			}
			wrong := run0(t, s, wire.Command{Argv: []string{"bash", "-n", "-c", text.String()}}).ExitCode == 2
			a := se.dial(wire.SessionExec{Text: text.String(), Timeout: time.Second}).all()
			if a.failure != nil {
				t.Fatalf("%q: %s, want a result", text.String(), describe(a.failure))
			}
			o := outcomeOf(t, a)
			if o.Ended || wrong && o.Ending == runtime.Exited && o.ExitCode == 0 {
				t.Fatalf("%q (syntax error: %v) gave %v, want a live session, and no exit 0 after a syntax error",
					text.String(), wrong, o)
			}
			next := se.dial(wire.SessionExec{Text: "echo alive", Timeout: bound}).all()
			if next.failure != nil || next.stdout.String() != "alive\n" {
				t.Fatalf(`after %q, which gave %v: %s, reply %s, output %q; want "alive\n"`, text.String(), o,
					describe(next.failure), next.reply, next.stdout.String())
			}
		}
	})
}

func run0(tb testing.TB, s *Server, cmd wire.Command) runtime.Result {
	tb.Helper()
	_, r := run1(tb, s, cmd)
	return r
}
