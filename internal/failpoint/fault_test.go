//go:build faults

package failpoint

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv("FAULT_CHILD") != "" {
		for range 3 {
			Hit("other")
			_, _ = os.Stdout.WriteString("x")
			Hit("create.made")
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestDiesAtTheNamedPointOnly(t *testing.T) {
	for _, c := range []struct {
		env    string
		steps  int
		killed bool
	}{
		{"", 3, false},
		{"unknown", 3, false},
		{"create.made", 1, true},
		{"create.made:1", 1, true},
		{"create.made:3", 3, true},
		{"create.made:4", 3, false},
		{"other", 0, true},
		{"create.made:x", 3, false},
	} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "FAULT_CHILD=1", Env+"="+c.env)
		out, err := cmd.Output()
		killed := false
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			killed = exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
		} else if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(string(out), "x"); got != c.steps || killed != c.killed {
			t.Errorf("%s=%q: %d steps, killed %v; want %d, %v", Env, c.env, got, killed, c.steps, c.killed)
		}
	}
}
