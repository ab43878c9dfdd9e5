package server

import (
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// The guest's replacement for gVisor's missing signals, on a terminal that could send them.
func TestMuteTerminalGetsSignals(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		c := onScreen(t, s, wire.Command{Argv: []string{"bash", "-c",
			`trap 'stty size' WINCH; trap 'echo int' INT; trap 'exit 6' QUIT; echo ready; while :; do read -t 1 x && echo "got $x"; done`}})
		c.sees("ready")
		sh, err := s.findShell(c.id)
		if err != nil {
			t.Fatal(err)
		}
		if sh.run.term.mute {
			t.Error("a terminal of the kernel is mute, want one that sends signals itself")
		}
		sh.run.term.mute = true
		c.press("a\x03b\r")
		c.sees("int\r\n")
		c.sees("got ab\r\n") // only the key is removed
		ask[struct{}](t, s, wire.OpResize, wire.Resize{ID: c.id, Cols: 44, Rows: 22})
		c.sees("22 44\r\n")
		c.press("\x1c")
		_, r := c.ends()
		wantEnding(t, r, runtime.Exited, 6)
		// The shell may have ended between the signal and the rest of the input.
		if err := sh.run.term.write(sh, nil, func() bool { return false }); err != nil {
			t.Errorf("write of the key that ended the shell: %v, want no error", err)
		}
	})
}
