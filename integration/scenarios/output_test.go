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

// streamsOf returns streams that read stdin and discard the output.
func streamsOf(stdin io.Reader) client.Streams {
	return client.Streams{Stdin: stdin, Stdout: io.Discard, Stderr: io.Discard}
}

// testRawOutput checks that streamed output has all bytes as they were written, and that other
// output has its beginning and its end.
func testRawOutput(t *testing.T, s *harness.Server) {
	id := lease(t, s, v1.SandboxRequest{}).ID
	var all [256]byte
	for i := range all {
		all[i] = byte(i)
	}
	program := v1.Exec{Argv: []string{
		"python3", "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4096); sys.stderr.write('on the side')",
	}}
	want := bytes.Repeat(all[:], 4096)
	var out, errOut bytes.Buffer
	r, err := s.Client.ExecStream(within(t), id, program, client.Streams{Stdout: &out, Stderr: &errOut})
	if err != nil || r.Ending != "exited" || r.ExitCode != 0 {
		t.Fatalf("ExecStream = %+v, %v; want exit code 0", r, err)
	}
	if !bytes.Equal(out.Bytes(), want) || errOut.String() != "on the side" {
		t.Errorf("ExecStream wrote %d bytes, and %q to stderr; want the %d bytes of the program and %q",
			out.Len(), errOut.String(), len(want), "on the side")
	}
	r = exec(t, s, id, v1.Exec{Command: "seq 1 100000", MaxOutputBytes: 1000})
	if !r.Truncated || r.StdoutBytes != 588895 || r.Ending != "exited" {
		t.Errorf("truncated output = %+v, want 588895 bytes counted", r)
	}
	if r.Stdout[:4] != "1\n2\n" || r.Stdout[len(r.Stdout)-7:] != "100000\n" {
		t.Errorf("truncated output begins with %q and ends with %q, want the first and last numbers",
			r.Stdout[:10], r.Stdout[len(r.Stdout)-10:])
	}
}

// testStandardInput checks commands with input, without input, and with a large stream.
func testStandardInput(t *testing.T, s *harness.Server) {
	id := lease(t, s, v1.SandboxRequest{}).ID
	r := exec(t, s, id, v1.Exec{Argv: []string{"wc", "-c"}, Stdin: "12345"})
	if r.Stdout != "5\n" {
		t.Errorf("wc -c of 5 bytes = %+v, want 5", r)
	}
	// Without input, a command reads the end of the input at once.
	if r = exec(t, s, id, v1.Exec{Argv: []string{"wc", "-c"}}); r.Stdout != "0\n" {
		t.Errorf("wc -c without input = %+v, want 0", r)
	}
	const size = 8 << 20
	in := io.LimitReader(zeros{}, size)
	var out bytes.Buffer
	r, err := s.Client.ExecStream(within(t), id, v1.Exec{Argv: []string{"wc", "-c"}},
		client.Streams{Stdin: in, Stdout: &out})
	if err != nil || out.String() != "8388608\n" {
		t.Errorf("wc -c of 8 MiB = %+v, %v, stdout %q; want 8388608", r, err, out.String())
	}
}

// zeros reads as endless zeros.
type zeros struct{}

// Read fills p with zeros.
func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// testProgramsOfTheImage runs what agents type first.
func testProgramsOfTheImage(t *testing.T, s *harness.Server) {
	id := lease(t, s, v1.SandboxRequest{}).ID
	for command, want := range map[string]string{
		`python -c 'print(6 * 7)'`: "42\n",
		`cd /tmp && echo text > a && zip -q a.zip a && rm a && unzip -q a.zip && cat a`: "text\n",
		`mkdir /tmp/p && cd /tmp/p && echo 'answer = 42' > mine.py &&
			echo 'from setuptools import setup; setup(name="mine", version="1", py_modules=["mine"])' > setup.py &&
			pip install -q --no-index --no-build-isolation . >&2 && cd / && python -c 'import mine; print(mine.answer)'`: "42\n",
	} {
		if r := exec(t, s, id, v1.Exec{Command: command}); r.Stdout != want || r.ExitCode != 0 {
			t.Errorf("%s printed %q with exit code %d and stderr %q, want %q and exit code 0", command, r.Stdout, r.ExitCode,
				r.Stderr, want)
		}
	}
}
