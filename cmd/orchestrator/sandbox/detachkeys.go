package sandbox

import (
	"bytes"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// defaultDetachKeys are the keys of Docker.
const defaultDetachKeys = "ctrl-p,ctrl-q"

// parseDetachKeys reads keys such as "ctrl-p,ctrl-q" or "ctrl-]". "none" means no keys.
func parseDetachKeys(cmd *cobra.Command, text string) ([]byte, error) {
	if text == "none" {
		return nil, nil
	}
	var keys []byte
	for name := range strings.SplitSeq(text, ",") {
		c, ok := parseKey(name)
		if !ok {
			return nil, cli.Usage(
				cmd,
				"--detach-keys has %q: use single characters, ctrl- and one of a-z @ [ \\ ] ^ _, or none",
				name,
			)
		}
		keys = append(keys, c)
	}
	return keys, nil
}

func parseKey(name string) (byte, bool) {
	rest, ctrl := strings.CutPrefix(strings.ToLower(name), "ctrl-")
	switch {
	case !ctrl && len(name) == 1 && name[0] > ' ' && name[0] < 0x7f:
		return name[0], true
	case ctrl && len(rest) == 1 && rest[0] >= 'a' && rest[0] <= 'z':
		return rest[0] - 'a' + 1, true
	case ctrl && len(rest) == 1 && strings.IndexByte(`@[\]^_`, rest[0]) >= 0:
		return rest[0] - '@', true
	}
	return 0, false
}

// detachScanner finds the detach keys in typed input. It holds back keys that may be the first of
// them until the next key decides.
type detachScanner struct {
	keys []byte
	held int // number of keys that are held back
}

// feed returns the input to send, and whether all detach keys were typed.
func (d *detachScanner) feed(b []byte) (out []byte, leave bool) {
	if len(d.keys) == 0 {
		return b, false
	}
	for _, c := range b {
		for d.held > 0 && c != d.keys[d.held] {
			// The held keys do not start the sequence: send as many as needed until the rest does.
			n := 1
			for n < d.held && !bytes.HasPrefix(d.keys, d.keys[n:d.held]) {
				n++
			}
			out = append(out, d.keys[:n]...)
			d.held -= n
		}
		if c != d.keys[d.held] {
			out = append(out, c)
			continue
		}
		if d.held++; d.held == len(d.keys) {
			d.held = 0
			return out, true
		}
	}
	return out, false
}
