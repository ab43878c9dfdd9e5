// Package sandboxtest gives Go tests sandboxes to run commands in.
//
//	sb := sandboxtest.New(t)
//	sb.Write("main.py", "print(6*7)")
//	fmt.Println(sb.Run("python3 main.py").Stdout)
//
// # Server
//
// The package uses the server at ORCHESTRATOR_ADDRESS, or else the one at client.DefaultAddress. If
// none runs there, the test process starts a server for all its tests, from ORCHESTRATOR_BIN or
// PATH and with a temporary state directory. That needs root and an image archive. This server
// exits and removes everything it created when the process ends, even by SIGKILL: it waits for the
// end of a pipe that only the process holds.
//
// # Cleanup
//
// A sandbox is destroyed when its test ends. If the process dies earlier, a server that it started
// destroys the sandbox at once. Any other server destroys it when the lease expires, shortly after
// the test's deadline.
//
// # Errors
//
// A test that cannot get a sandbox fails with the reason, or is skipped with the reason if
// Options.Skip is set.
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
	// graceTime is how much longer than the test's deadline a lease lasts.
	graceTime = 30 * time.Second
	// withoutDeadline is the duration of a lease if the test has no deadline.
	withoutDeadline = 30 * time.Minute
	// removeTime bounds the destruction of a sandbox.
	removeTime = time.Minute
)

// Options configure a sandbox. The zero value is an empty workspace in the default template.
type Options struct {
	// Template and Class are as in v1.SandboxRequest.
	Template, Class string
	// Env is the environment of all commands.
	Env map[string]string
	// Workspace is a local directory that is copied to /workspace: files, directories and symbolic
	// links with their modes.
	Workspace string
	// Files are written afterwards. Keys are paths below /workspace, values are contents.
	Files map[string]string
	// Skip skips the test with the reason, instead of failing it, if no sandbox is available.
	Skip bool
}

// Sandbox is a leased sandbox of a test. Errors of the infrastructure fail the test. The outcome of
// a command does not: the test decides.
type Sandbox struct {
	ID     string
	Client *client.Client
	t      testing.TB
}

// New leases a sandbox for the test, and destroys it when the test ends. If several options are
// given, the last non-empty value of each field counts, and the maps are merged. It fails the test
// on an error, so it must be called from the test's goroutine.
func New(tb testing.TB, options ...Options) *Sandbox {
	tb.Helper()
	o := join(options)
	ctx, cancel := within(tb)
	defer cancel()
	cl, err := connect(ctx)
	if err != nil {
		if o.Skip {
			tb.Skipf("sandboxtest: no sandbox available: %v", err)
		}
		tb.Fatalf("sandboxtest: no sandbox available: %v", err)
	}
	got, err := cl.CreateSandbox(ctx, v1.SandboxRequest{
		Template: o.Template, Class: o.Class, Env: o.Env, TTLMS: ttl(tb).Milliseconds(),
		Labels: map[string]string{"test": label(tb.Name())},
	})
	if err != nil {
		tb.Fatalf("sandboxtest: lease a sandbox: %v", err)
	}
	s := &Sandbox{ID: got.ID, Client: cl, t: tb}
	tb.Cleanup(s.remove) // runs even if the test panics
	if o.Workspace != "" {
		if err := s.copyIn(ctx, o.Workspace); err != nil {
			tb.Fatalf("sandboxtest: copy %s into the sandbox: %v", o.Workspace, err)
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

// label shortens a test's name to the maximum length of a label.
func label(name string) string { return name[:min(len(name), 512)] }

// ttl returns the duration of the lease.
func ttl(tb testing.TB) time.Duration {
	tb.Helper()
	if d, ok := tb.(interface{ Deadline() (time.Time, bool) }); ok {
		if end, bounded := d.Deadline(); bounded {
			return max(time.Until(end), 0) + graceTime
		}
	}
	return withoutDeadline
}

// within returns the context of a call. It ends with the test or shortly after the test's deadline.
func within(tb testing.TB) (context.Context, context.CancelFunc) {
	tb.Helper()
	return context.WithTimeout(tb.Context(), ttl(tb))
}

// remove destroys the sandbox. It needs a separate context because the test's has ended.
func (s *Sandbox) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	if err := s.Client.RemoveSandbox(ctx, s.ID); err != nil {
		s.t.Errorf("sandboxtest: remove sandbox %s: %v", s.ID, err)
	}
}

// Run runs a line of shell in /workspace and waits until it ends.
func (s *Sandbox) Run(command string) v1.ExecResult {
	s.t.Helper()
	return s.Exec(v1.Exec{Command: command})
}

// Exec runs a command and waits until it ends.
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

// Must is like Run, but fails the test unless the command exits with 0. It returns the standard
// output.
func (s *Sandbox) Must(command string) string {
	s.t.Helper()
	r := s.Run(command)
	if r.Ending != "exited" || r.ExitCode != 0 {
		s.t.Fatalf("sandboxtest: %s: %s %d\n%s%s", command, r.Ending, r.ExitCode, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// Session starts a shell that keeps its state between commands. It ends with the sandbox.
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

// Files returns access to the sandbox's files.
func (s *Sandbox) Files() client.Files { return s.Client.SandboxFiles(s.ID) }

// Write writes a file below /workspace and creates missing parent directories.
func (s *Sandbox) Write(path, content string) {
	s.t.Helper()
	ctx, cancel := within(s.t)
	defer cancel()
	if err := s.write(ctx, path, strings.NewReader(content), 0); err != nil {
		s.t.Fatalf("sandboxtest: write %s: %v", path, err)
	}
}

// Read returns the content of a file below /workspace.
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
