//go:build integration

package sandboxtest

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// inChild makes this binary the test process that is killed.
const inChild = "SANDBOXTEST_CHILD"

func TestMain(m *testing.M) {
	if bin := os.Getenv("ORCHESTRATOR_TEST_BIN"); bin != "" {
		os.Setenv("ORCHESTRATOR_BIN", bin)
		os.Setenv("ORCHESTRATOR_IMAGE_ARCHIVE", os.Getenv("ORCHESTRATOR_TEST_IMAGE_ARCHIVE"))
	}
	code := m.Run()
	if err := Stop(); err != nil {
		println(err.Error())
		code = 1
	}
	os.Exit(code)
}

func TestSandboxStartsServer(t *testing.T) {
	src := t.TempDir()
	for name, text := range map[string]string{"run.sh": "#!/bin/sh\necho ran\n", "sub/data": "42"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(src, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(src, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("sub/data", filepath.Join(src, "link")); err != nil {
		t.Fatal(err)
	}
	var id string
	t.Run("used", func(t *testing.T) {
		sb := New(t, Options{Workspace: src, Files: map[string]string{"a/b.txt": "hello"},
			Env: map[string]string{"GREETING": "hi"}})
		id = sb.ID
		got := sb.Must(`./run.sh; cat link a/b.txt; echo " $GREETING"; pwd`)
		if want := "ran\n42hello hi\n/workspace\n"; got != want {
			t.Errorf("Must = %q, want %q", got, want)
		}
		if r := sb.Run("exit 7"); r.ExitCode != 7 {
			t.Errorf("Run = %+v, want exit code 7", r)
		}
		sb.Must("echo written >out.txt")
		if got, want := sb.Read("out.txt"), "written\n"; got != want {
			t.Errorf("Read(out.txt) = %q, want %q", got, want)
		}
		se := sb.Session()
		if _, err := se.Run(t.Context(), "x=5"); err != nil {
			t.Fatal(err)
		}
		if r, err := se.Run(t.Context(), "echo $x"); err != nil || r.Stdout != "5\n" {
			t.Errorf("Run in the session = %+v, %v; want 5", r, err)
		}
	})
	cl, err := connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := cl.Sandbox(t.Context(), id); err != nil || got.State != "gone" {
		t.Errorf("the sandbox after its test = %+v, %v; want state gone", got, err)
	}
}

// TestChild is the process that TestKilledProcessLeavesNoSandbox kills.
func TestChild(t *testing.T) {
	if os.Getenv(inChild) == "" {
		return // it is not that process
	}
	sb := New(t)
	sb.Must("sleep 31415 >/dev/null 2>&1 & disown")
	if _, err := sb.Session().Run(t.Context(), "sleep 31415 &"); err != nil {
		t.Fatal(err)
	}
	println("DIR " + server.own.dir)
	select {}
}

func TestKilledProcessLeavesNoSandbox(t *testing.T) {
	child := exec.Command("/proc/self/exe", "-test.run=^TestChild$", "-test.timeout=5m")
	child.Env = append(os.Environ(), inChild+"=1")
	out, err := child.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	dir := ""
	for lines := bufio.NewScanner(out); dir == "" && lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "DIR "); ok {
			dir = rest
		}
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // it was killed
	if dir == "" {
		t.Fatal("the child reported no directory, want a sandbox")
	}
	end := time.Now().Add(2 * time.Minute)
	for time.Now().Before(end) {
		if _, err := os.Stat(dir); os.IsNotExist(err) && !running("31415") {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	said, _ := os.ReadFile(filepath.Join(dir, "serve.log"))
	t.Errorf("%s or a process of the sandbox is left, want neither; log: %s", dir, said)
}

// running reports whether a process has the word as an argument.
func running(word string) bool {
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return true
	}
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && strings.Contains(string(b), word+"\x00") {
			return true
		}
	}
	return false
}
