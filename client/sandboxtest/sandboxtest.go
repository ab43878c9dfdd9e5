// Package sandboxtest gives Go tests sandboxes to run commands in.
//
//	sb := sandboxtest.New(t)
//	sb.Write("main.py", "print(6*7)")
//	fmt.Println(sb.Run("python3 main.py").Stdout)
//
// Sandboxes come from the server that ORCHESTRATOR_ADDRESS names, or from one
// that listens where servers do by default. Where none does, the process starts
// one of its own, for all its tests: the program in ORCHESTRATOR_BIN or PATH,
// with a state directory of its own. That needs root and the archive of an
// image. It ends, and removes all it made, when the process does, by SIGKILL
// too: it waits for the end of a pipe that only the process holds.
//
// A sandbox is destroyed with its test. Of a process that dies before that, the
// server of its own destroys it at once, any other at the end of its lease,
// which is a little after the test's deadline.
//
// Nothing is skipped in silence. A test that cannot have a sandbox fails with
// the reason, or is skipped with it where Options.Skip is set.
package sandboxtest

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

const (
	// graceTime is how long a lease is longer than its test's deadline.
	graceTime = 30 * time.Second
	// withoutDeadline is how long it is where the test has none.
	withoutDeadline = 30 * time.Minute
	// removeTime bounds the destruction of a sandbox.
	removeTime = time.Minute
)

// Options of a sandbox. The zero value is an empty workspace in the default
// template.
type Options struct {
	// Template and Class are as those of v1.SandboxRequest.
	Template, Class string
	// Env is the environment of all its commands.
	Env map[string]string
	// Workspace is a folder of this machine that is copied to /workspace: files,
	// folders and symbolic links with their modes.
	Workspace string
	// Files are written after that, by their paths below /workspace.
	Files map[string]string
	// Skip skips the test where no sandbox can be had, with the reason.
	Skip bool
}

// Sandbox is a leased sandbox of a test. What goes wrong around a command fails
// the test; how a command ends is the test's to judge.
type Sandbox struct {
	ID     string
	Client *client.Client
	t      testing.TB
}

// New leases a sandbox for the test. Of several options the last one that is
// set counts for each field; the maps are joined.
func New(t testing.TB, options ...Options) *Sandbox {
	t.Helper()
	o := join(options)
	ctx, cancel := within(t)
	defer cancel()
	cl, err := connect(ctx)
	if err != nil {
		if o.Skip {
			t.Skipf("sandboxtest: no sandbox can be had: %v", err)
		}
		t.Fatalf("sandboxtest: no sandbox can be had: %v", err)
	}
	got, err := cl.CreateSandbox(ctx, v1.SandboxRequest{
		Template: o.Template, Class: o.Class, Env: o.Env, TTLMS: ttl(t).Milliseconds(), Labels: map[string]string{"test": label(t.Name())},
	})
	if err != nil {
		t.Fatalf("sandboxtest: lease a sandbox: %v", err)
	}
	s := &Sandbox{ID: got.ID, Client: cl, t: t}
	t.Cleanup(s.remove) // also when the test panics
	if o.Workspace != "" {
		if err := s.copyIn(ctx, o.Workspace); err != nil {
			t.Fatalf("sandboxtest: copy %s into the sandbox: %v", o.Workspace, err)
		}
	}
	for path, content := range o.Files {
		s.Write(path, content)
	}
	return s
}

func join(options []Options) Options {
	o := Options{Env: map[string]string{}, Files: map[string]string{}}
	for _, next := range options {
		set(&o.Template, next.Template)
		set(&o.Class, next.Class)
		set(&o.Workspace, next.Workspace)
		o.Skip = o.Skip || next.Skip
		for k, v := range next.Env {
			o.Env[k] = v
		}
		for k, v := range next.Files {
			o.Files[k] = v
		}
	}
	return o
}

func set(value *string, next string) {
	if next != "" {
		*value = next
	}
}

// label is a test's name as a label takes it.
func label(name string) string { return name[:min(len(name), 512)] }

// ttl is how long the lease is at most.
func ttl(t testing.TB) time.Duration {
	if d, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if end, bounded := d.Deadline(); bounded {
			return max(time.Until(end), 0) + graceTime
		}
	}
	return withoutDeadline
}

// within is the context of a call: it ends with the test, or before its
// deadline does.
func within(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), ttl(t))
}

// remove destroys the sandbox. The test's context is over by then.
func (s *Sandbox) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	if err := s.Client.RemoveSandbox(ctx, s.ID); err != nil {
		s.t.Errorf("sandboxtest: remove sandbox %s: %v", s.ID, err)
	}
}

// Run runs a line of shell in /workspace and waits for its end.
func (s *Sandbox) Run(command string) v1.ExecResult {
	s.t.Helper()
	return s.Exec(v1.Exec{Command: command})
}

// Exec runs a command and waits for its end.
func (s *Sandbox) Exec(x v1.Exec) v1.ExecResult {
	s.t.Helper()
	ctx, cancel := within(s.t)
	defer cancel()
	r, err := s.Client.Exec(ctx, s.ID, x)
	if err != nil {
		s.t.Fatalf("sandboxtest: run a command: %v", err)
	}
	return r
}

// Must is Run for a command that has to exit with 0; it gives its standard
// output.
func (s *Sandbox) Must(command string) string {
	s.t.Helper()
	r := s.Run(command)
	if r.Ending != "exited" || r.ExitCode != 0 {
		s.t.Fatalf("sandboxtest: %s: %s %d\n%s%s", command, r.Ending, r.ExitCode, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// Session starts a shell that keeps its state from command to command. It ends
// with the sandbox.
func (s *Sandbox) Session() *client.Session {
	s.t.Helper()
	ctx, cancel := within(s.t)
	defer cancel()
	se, _, err := s.Client.StartSession(ctx, s.ID, v1.ShellSessionRequest{})
	if err != nil {
		s.t.Fatalf("sandboxtest: start a session: %v", err)
	}
	return se
}

// Files are the sandbox's.
func (s *Sandbox) Files() client.Files { return s.Client.SandboxFiles(s.ID) }

// Write writes a file below /workspace, with the folders above it.
func (s *Sandbox) Write(path, content string) {
	s.t.Helper()
	ctx, cancel := within(s.t)
	defer cancel()
	if err := s.write(ctx, path, strings.NewReader(content), 0); err != nil {
		s.t.Fatalf("sandboxtest: write %s: %v", path, err)
	}
}

// Read reads a file below /workspace.
func (s *Sandbox) Read(path string) string {
	s.t.Helper()
	ctx, cancel := within(s.t)
	defer cancel()
	r, err := s.Files().Read(ctx, path, client.Range{})
	if err != nil {
		s.t.Fatalf("sandboxtest: read %s: %v", path, err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		s.t.Fatalf("sandboxtest: read %s: %v", path, err)
	}
	return string(b)
}
