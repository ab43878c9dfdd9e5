//go:build integration

package scenarios

import (
	"bytes"
	"io"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

func streamsOf(stdin io.Reader) client.Streams {
	return client.Streams{Stdin: stdin, Stdout: io.Discard, Stderr: io.Discard}
}

// Bytes come as they are in the streamed forms, and text whole or with both
// its ends in the others.
func rawOutput(t *testing.T, s *harness.Server) {
	id := lease(t, s, v1.SandboxRequest{}).ID
	var all [256]byte
	for i := range all {
		all[i] = byte(i)
	}
	program := v1.Exec{Argv: []string{"python3", "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4096); sys.stderr.write('on the side')"}}
	want := bytes.Repeat(all[:], 4096)
	var out, errOut bytes.Buffer
	r, err := s.Client.ExecStream(within(t), id, program, client.Streams{Stdout: &out, Stderr: &errOut})
	if err != nil || r.Ending != "exited" || r.ExitCode != 0 {
		t.Fatalf("%+v %v", r, err)
	}
	if !bytes.Equal(out.Bytes(), want) || errOut.String() != "on the side" {
		t.Errorf("%d bytes, and %q on stderr", out.Len(), errOut.String())
	}
	r = exec(t, s, id, v1.Exec{Command: "seq 1 100000", MaxOutputBytes: 1000})
	if !r.Truncated || r.StdoutBytes != 588895 || r.Ending != "exited" {
		t.Errorf("%+v", r)
	}
	if r.Stdout[:4] != "1\n2\n" || r.Stdout[len(r.Stdout)-7:] != "100000\n" {
		t.Errorf("head and tail: %q … %q", r.Stdout[:10], r.Stdout[len(r.Stdout)-10:])
	}
}

func standardInput(t *testing.T, s *harness.Server) {
	id := lease(t, s, v1.SandboxRequest{}).ID
	r := exec(t, s, id, v1.Exec{Argv: []string{"wc", "-c"}, Stdin: "12345"})
	if r.Stdout != "5\n" {
		t.Errorf("%+v", r)
	}
	// Without input a command sees its end at once.
	if r = exec(t, s, id, v1.Exec{Argv: []string{"wc", "-c"}}); r.Stdout != "0\n" {
		t.Errorf("%+v", r)
	}
	const size = 8 << 20
	in := io.LimitReader(zeros{}, size)
	var out bytes.Buffer
	r, err := s.Client.ExecStream(within(t), id, v1.Exec{Argv: []string{"wc", "-c"}}, client.Streams{Stdin: in, Stdout: &out})
	if err != nil || out.String() != "8388608\n" {
		t.Errorf("%+v %v %q", r, err, out.String())
	}
}

type zeros struct{}

// Read fills p.
func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
