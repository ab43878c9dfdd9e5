package sandbox

import (
	"bytes"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// defaultDetachKeys are those of Docker's.
const defaultDetachKeys = "ctrl-p,ctrl-q"

// parseDetachKeys reads keys such as "ctrl-p,ctrl-q" or "ctrl-]"; "none" is no
// keys at all.
func parseDetachKeys(cmd *cobra.Command, text string) ([]byte, error) {
	if text == "none" {
		return nil, nil
	}
	var keys []byte
	for name := range strings.SplitSeq(text, ",") {
		c, ok := parseKey(name)
		if !ok {
			return nil, cli.Usage(cmd, "--detach-keys has %q: use single characters, ctrl- and one of a-z @ [ \\ ] ^ _, or none", name)
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

// detachScanner looks for the keys among what is typed. Those that may be the
// beginning are held back until the next one tells.
type detachScanner struct {
	keys []byte
	held int // how many of keys were typed last
}

// feed returns what is to be handed on, and whether all keys came.
func (d *detachScanner) feed(b []byte) (out []byte, leave bool) {
	if len(d.keys) == 0 {
		return b, false
	}
	for _, c := range b {
		for d.held > 0 && c != d.keys[d.held] {
			// The held keys are no beginning: hand on as many of them as it
			// takes for the rest to be one.
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
