//go:build integration

package scenarios

import (
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// tmux is a real terminal in which a user runs the program.
type tmux struct {
	t      *testing.T
	socket string
}

// newTmux runs the program in a terminal of 100 columns and 30 rows. After the program ends, the
// terminal shows its exit code.
func newTmux(t *testing.T, s *harness.Server, args ...string) *tmux {
	t.Helper()
	return newTmuxOf(t, s, "100", "30", args...)
}

// newTmuxOf is newTmux with another size.
func newTmuxOf(t *testing.T, s *harness.Server, columns, rows string, args ...string) *tmux {
	t.Helper()
	if _, err := osexec.LookPath("tmux"); err != nil {
		t.Fatal("tmux is not installed: apt-get install tmux")
	}
	m := &tmux{t: t, socket: filepath.Join(harness.TempDir(t), "tmux")}
	t.Cleanup(func() { _ = osexec.Command("tmux", "-S", m.socket, "kill-server").Run() })
	script := filepath.Join(harness.TempDir(t), "run.sh")
	line := "exec 2>&1; export ORCHESTRATOR_CONFIG='" + s.Config() + "'; '" + harness.Need(t, harness.EnvBin) + "'"
	for _, a := range args {
		line += " '" + a + "'"
	}
	harness.WriteFile(t, script, line+"\necho \"exit code $?.\"; stty -a | grep -o -- '-*icanon'; exec sleep 1000\n")
	m.command("-f", "/dev/null", "new-session", "-d", "-x", columns, "-y", rows, "bash "+script)
	m.command("set-option", "-g", "status", "off")
	return m
}

// command runs a tmux command and returns its output.
func (m *tmux) command(args ...string) string {
	m.t.Helper()
	out, err := osexec.Command("tmux", append([]string{"-S", m.socket}, args...)...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("tmux %v: %v: %s", args, err, out)
	}
	return string(out)
}

// keys presses keys, in tmux's notation.
func (m *tmux) keys(keys ...string) {
	m.t.Helper()
	m.command(append([]string{"send-keys"}, keys...)...)
}

// line types a line and presses Enter.
func (m *tmux) line(text string) {
	m.t.Helper()
	m.command("send-keys", "-l", text)
	m.keys("Enter")
}

// shown returns the screen without trailing spaces.
func (m *tmux) shown() string {
	m.t.Helper()
	return trailing.ReplaceAllString(m.command("capture-pane", "-p", "-J"), "")
}

var trailing = regexp.MustCompile(`(?m) +$`)

// sees waits until the screen matches the pattern, and returns the last group of the match.
func (m *tmux) sees(pattern string) string {
	m.t.Helper()
	re := regexp.MustCompile("(?m)" + pattern)
	last := ""
	defer func() {
		if m.t.Failed() {
			m.t.Logf("the terminal shows:\n%s", last)
		}
	}()
	harness.Eventually(m.t, harness.Short, "the terminal shows "+pattern, func() bool {
		last = m.shown()
		return re.MatchString(last)
	})
	found := re.FindStringSubmatch(last)
	return found[len(found)-1]
}

// until presses the keys repeatedly until the screen matches: the program may still be starting.
func (m *tmux) until(pattern string, keys ...string) {
	m.t.Helper()
	re := regexp.MustCompile("(?m)" + pattern)
	defer func() {
		if m.t.Failed() {
			m.t.Logf("the terminal shows:\n%s", m.shown())
		}
	}()
	harness.Eventually(m.t, harness.Short, "the terminal shows "+pattern, func() bool {
		m.keys(keys...)
		time.Sleep(200 * time.Millisecond)
		return re.MatchString(m.shown())
	})
}

// quit leaves a program and waits for the shell: many programs discard input that arrives before
// they end.
func (m *tmux) quit(key string) {
	m.keys(key)
	m.sees(prompt)
}

const prompt = `^user@sandbox:.*\$ *$`

// testUserAtTerminal uses a terminal as a user would: job control, full-screen programs, a changed
// size, an editor.
func testUserAtTerminal(t *testing.T, s *harness.Server, id string) {
	m := newTmux(t, s, "sandbox", "enter", "-e", "GREETING=hello", "--cwd", "/tmp", id)
	m.sees(prompt)
	m.line("echo $GREETING; pwd; tty; stty size; id -u")
	m.sees(`^hello\n/tmp\n/dev/pts/\d+\n30 100\n1000\n` + prompt[1:])
	// Jobs.
	m.line("echo up; sleep 1000")
	m.sees(`^up$`) // a terminal discards unread input when such a key is pressed
	m.until(`Stopped +sleep 1000`, "C-z")
	m.line("clear; fg")
	m.sees(`^sleep 1000`)
	m.until(`\^C\n.*\$ *$`, "C-c")
	m.line("clear; fg; echo code=$?")
	m.sees(`no such job\ncode=1$`)
	// Full-screen programs, and a changed size.
	m.line("top -d 0.2")
	m.sees(`^top - .*load average`)
	m.command("resize-window", "-x", "80", "-y", "20")
	m.quit("q")
	m.line("clear; stty size")
	m.sees(`^20 80$`)
	m.line(`seq 100 | less`)
	m.sees(`^1\n2\n`)
	m.keys("G")
	m.sees(`^100\n\(END\)`)
	m.quit("q")
	m.line(`clear; python3 -c "import curses; curses.wrapper(lambda w: ` +
		`(w.addstr(3, 5, 'at 3 5 of %d %d' % w.getmaxyx()), w.getkey()))"`)
	m.sees(`^     at 3 5 of 20 80$`)
	m.quit("x")
	m.line("clear; nano written.txt")
	m.sees(`written\.txt`)
	m.line("by an editor")
	m.keys("C-o")
	m.sees(`File Name to Write: written\.txt`)
	m.keys("Enter")
	m.sees(`Wrote 1 line|Wrote 2 lines`)
	m.quit("C-x")
	m.line("clear; cat written.txt")
	m.sees(`^by an editor$`)
	m.line("clear; python3 -q")
	m.sees(`^>>> *$`)
	m.line("6*7")
	m.sees(`^42$`)
	m.quit("C-d")
	m.line("clear; exit 7")
	m.sees(`^exit code 7\.\nicanon$`) // the user's terminal is restored
	if list, err := s.Client.Shells(within(t), id); err != nil || len(list) != 0 {
		t.Errorf("Shells after the end = %+v, %v; want none", list, err)
	}
}

// testDetachAndAttach detaches from a terminal and attaches again, also read-only, and checks
// errors of the command line.
func testDetachAndAttach(t *testing.T, s *harness.Server, id string) {
	m := newTmux(t, s, "sandbox", "enter", id)
	m.sees(prompt)
	m.line("KEPT=value")
	m.keys("C-p", "C-q")
	shell := m.sees("attach again with `orchestrator shell attach ([0-9a-f-]+)`")
	m.sees(`^exit code 0\.\nicanon$`)
	if got := s.CLI(t, "shell", "ls", "--no-trunc", id); !regexp.MustCompile(shell + ` +running +- +tty `).MatchString(got.Stdout) {
		t.Errorf("shell ls printed %s, want the terminal running", got.Stdout)
	}
	m = newTmux(t, s, "shell", "attach", "--detach-keys", "ctrl-]", shell)
	m.sees(`KEPT=value`) // the earlier output
	m.line("echo $KEPT $(stty size)")
	m.sees(`^value 30 100$`)
	reader := newTmux(t, s, "shell", "attach", "--read-only", shell)
	reader.sees(`^value 30 100$`)
	reader.line("echo typed by the reader")
	m.keys("C-]")
	m.sees(`^exit code 0\.\nicanon$`)
	if strings.Contains(reader.shown(), "typed by the reader") {
		t.Error("a read-only client's input reached the terminal, want it dropped")
	}
	reader.keys("C-p", "C-q")
	reader.sees(`^exit code 0\.\nicanon$`)
	m = newTmux(t, s, "shell", "attach", shell)
	m.sees(`value 30 100`)
	m.line("exit 9")
	m.sees(`^exit code 9\.\nicanon$`)
	if _, err := s.Client.KillShell(within(t), shell, 0, true); err != nil {
		t.Error(err)
	}
	for _, args := range [][]string{{"--detach-keys", "", id}, {"--detach-keys", "ctrl-1", id}, {}} {
		s.CLI(t, append([]string{"sandbox", "enter"}, args...)...).Is(t, 64, "")
	}
	s.CLI(t, "sandbox", "enter", "no-such-sandbox").Is(t, 66, "no-such-sandbox")
	s.CLI(t, "shell", "attach", "no-such-shell").Is(t, 66, "no-such-shell")
}

// testKilledClient kills the client's program and ends it with a signal. The command must continue.
func testKilledClient(t *testing.T, s *harness.Server, id string) {
	m := newTmux(t, s, "sandbox", "enter", id)
	m.sees(prompt)
	m.line("KEPT=before")
	m.line("sleep 1000")
	m.sees("sleep 1000")
	list, err := s.Client.Shells(within(t), id)
	if err != nil || len(list) != 1 {
		t.Fatalf("Shells = %+v, %v; want one", list, err)
	}
	signal := func(subcommand string, sig syscall.Signal) { t.Helper(); signalProgram(t, s, subcommand, sig) }
	signal("enter", syscall.SIGKILL)
	m.sees(`exit code 137`)
	m = newTmux(t, s, "shell", "attach", list[0].ID)
	m.sees("sleep 1000")
	m.until(`\^C\n.*\$ *$`, "C-c")
	m.line("echo $KEPT again")
	m.sees(`^before again$`)
	// After a signal to the program, the user's terminal is restored and the command continues.
	signal("attach", syscall.SIGTERM)
	m.sees("attach again with `orchestrator shell attach")
	m.sees(`^exit code 143\.\nicanon$`)
	if sh, err := s.Client.KillShell(within(t), list[0].ID, 0, true); err != nil || sh.Result == nil ||
		sh.Result.Ending != "cancelled" {
		t.Errorf("KillShell = %+v, %v; want cancelled", sh, err)
	}
}

// signalProgram sends a signal to the program that runs a subcommand of this server.
func signalProgram(t *testing.T, s *harness.Server, subcommand string, sig syscall.Signal) {
	t.Helper()
	config := "ORCHESTRATOR_CONFIG=" + s.Config()
	found := harness.Processes(func(pid int) bool {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		return strings.Contains(string(cmdline), "\x00"+subcommand+"\x00") && strings.Contains(string(env), config)
	})
	if len(found) != 1 {
		t.Fatalf("%d programs run %s, want one", len(found), subcommand)
	}
	if err := syscall.Kill(found[0], sig); err != nil {
		t.Fatal(err)
	}
}

// testKilledFullScreen ends full-screen programs that cannot restore the terminal, in several ways.
// The user's terminal must be restored.
func testKilledFullScreen(t *testing.T, s *harness.Server, _ string) {
	const hidden = `printf "\033[?1049h\033[?25l\033[?1000h\033="; echo drawn; exec sleep 1000`
	for name, c := range map[string]struct {
		flags []string
		end   func(t *testing.T, sandbox string)
		shows string
	}{
		"timeout": {[]string{"--timeout", "10s"}, func(*testing.T, string) {}, `exit code 124\.`},
		"killed shell": {nil, func(t *testing.T, sandbox string) {
			t.Helper()
			list, err := s.Client.Shells(within(t), sandbox)
			if err != nil || len(list) != 1 {
				t.Fatalf("Shells = %+v, %v; want one", list, err)
			}
			if _, err := s.Client.KillShell(within(t), list[0].ID, 0, false); err != nil {
				t.Fatal(err)
			}
		}, `exit code 130\.`},
		"signal to the program": {nil, func(t *testing.T, _ string) {
			t.Helper()
			signalProgram(t, s, "enter", syscall.SIGQUIT)
		}, `exit code 2\.`},
		"removed sandbox": {nil, func(t *testing.T, sandbox string) {
			t.Helper()
			if err := s.Client.RemoveSandbox(within(t), sandbox); err != nil {
				t.Fatal(err)
			}
		}, `exit code 66\.`},
	} {
		t.Run(name, func(t *testing.T) {
			defer s.For(t)()
			sandbox := lease(t, s, v1.SandboxRequest{}).ID
			args := append(append([]string{"sandbox", "enter"}, c.flags...), sandbox, "--", "sh", "-c", hidden)
			m := newTmux(t, s, args...)
			m.sees(`^drawn$`)
			c.end(t, sandbox)
			m.sees(c.shows)
			m.sees(`^ *icanon$`)
			if strings.Contains(m.shown(), "may still be running") {
				t.Error("the program says that the command may still be running, want no such text")
			}
			const restored = "0 1 0 0\n"
			flags := "#{alternate_on} #{cursor_flag} #{mouse_any_flag} #{keypad_flag}"
			if got := m.command("display", "-p", flags); got != restored {
				t.Errorf("alternate screen, cursor, mouse and keypad are %q, want %q", got, restored)
			}
		})
	}
}

// testTerminalInPipes runs terminals without a terminal on the host.
func testTerminalInPipes(t *testing.T, s *harness.Server, id string) {
	got := s.Launch(t, strings.NewReader("echo sum=$((40+2))\nexit 3\n"), "sandbox", "enter", id).Wait()
	got.Is(t, 3, "")
	assertContains(t, got.Stdout, "sum=42\r\n")
	// The end of the input ends the command's input.
	got = s.Launch(t, strings.NewReader("one\ntwo\n"), "sandbox", "enter", id, "--", "cat").Wait()
	got.Is(t, 0, "")
	assertContains(t, got.Stdout, "two\r\n")
	got = s.Launch(t, strings.NewReader(""), "sandbox", "enter", id).Wait()
	got.Is(t, 0, "")
	got = s.Launch(t, nil, "sandbox", "enter", "-c", "seq 5000; exit 4", id).Wait()
	got.Is(t, 4, "")
	if got.Stdout != lines(5000) {
		t.Errorf("output of seq 5000: %d bytes, want %d", len(got.Stdout), len(lines(5000)))
	}
}

// testAttachPlainShell attaches to shells without a terminal, with and without input.
func testAttachPlainShell(t *testing.T, s *harness.Server, id string) {
	echo := v1.Exec{
		Command: `echo first; echo err >&2; while read x; do echo got $x; test "$x" = end && exit 5; done`,
	}
	sh, err := s.Client.StartShell(within(t), id, v1.ShellRequest{KeepOpen: true, Exec: echo})
	if err != nil {
		t.Fatal(err)
	}
	got := s.Launch(t, strings.NewReader("a\nend\n"), "shell", "attach", sh.ID).Wait()
	got.Is(t, 5, "err\n")
	if got.Stdout != "first\ngot a\ngot end\n" {
		t.Errorf("shell attach printed %q, want %q", got.Stdout, "first\ngot a\ngot end\n")
	}
	quiet, err := s.Client.StartShell(within(t), id, v1.ShellRequest{Exec: v1.Exec{Command: "echo only this"}})
	if err != nil {
		t.Fatal(err)
	}
	got = s.Launch(t, strings.NewReader("unread\n"), "shell", "attach", quiet.ID).Wait()
	got.Is(t, 0, "")
	if got.Stdout != "only this\n" {
		t.Errorf("shell attach printed %q, want %q", got.Stdout, "only this\n")
	}
	for _, id := range []string{sh.ID, quiet.ID} {
		if _, err := s.Client.KillShell(within(t), id, 0, true); err != nil {
			t.Error(err)
		}
	}
}
