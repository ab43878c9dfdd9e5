package governed

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy/argv"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

// box runs one tool call and implements tool.Box. The creator of the box leases and ends its
// sandbox.
type box struct {
	s         *Service
	principal caller.Principal
	id        string // id of the tool call
	caps      tool.Caps
	lease     *scheduler.Lease // nil for a tool that needs none
	// scope is the sandbox whose shells Shells lists, or "" for all sandboxes of the caller.
	scope string
	// check holds the argument rules that the guest enforces, or nil.
	check *argv.Rules
	watch Watch
	// profile is the name of the call's profile. notePlacement is called with the lease of a web
	// exchange or browser visit.
	profile       string
	notePlacement func(*scheduler.Lease)
}

var _ tool.Box = (*box)(nil)

// Caps returns the call's limits.
func (b *box) Caps() tool.Caps { return b.caps }

// Exec runs a command with the call's limits. rest is the id under which the whole output can be
// read if the answer holds only a part, or "".
func (b *box) Exec(ctx context.Context, x v1.Exec) (r v1.ExecResult, rest string, err error) {
	cut := b.caps.Output
	if cut.Limit == 0 {
		cut.Limit, cut.Unit = b.s.opts.MaxOutput, tool.Bytes
	}
	out, errOut := b.stream("stdout", cut), b.stream("stderr", cut)
	r, err = b.s.opts.Sandboxes.ExecIn(ctx, b.lease, b.id, x, core.Stream{Stdout: out, Stderr: errOut}, b.applyCaps)
	if err != nil {
		return r, "", errors.Join(err, out.drop(), errOut.drop())
	}
	var cutOut, cutErr bool
	r.Stdout, cutOut = out.keeper.Text()
	r.Stderr, cutErr = errOut.keeper.Text()
	r.Truncated = cutOut || cutErr
	if b.s.outputs != nil && (out.finish(cutOut) || errOut.finish(cutErr)) {
		rest = b.id
	}
	return r, rest, nil
}

func (b *box) applyCaps(c *wire.Command) {
	c.Check, c.MemoryBytes, c.CPUs = b.check, b.caps.MemoryBytes, b.caps.CPUs
	if c.Cwd != "" { // The profile sets the directory, so the caller's directory must be below it.
		c.Dirs = b.caps.Dirs
	}
}

// stream is an io.Writer for one output stream of a command. It feeds the answer, the kept output
// and the watcher.
type stream struct {
	name   string
	keeper *tool.Keeper
	kept   *keptOutput // nil if outputs are not kept
	watch  func(stream string, p []byte)
	log    *slog.Logger
}

func (b *box) stream(name string, cut tool.Cut) *stream {
	s := &stream{name: name, keeper: tool.NewKeeper(cut), watch: b.watch.Output, log: b.s.log}
	if b.s.outputs != nil {
		s.kept = b.s.outputs.newOutput(b.principal.Caller, b.id, name, cut.Limit)
	}
	return s
}

// Write implements io.Writer and never fails.
func (s *stream) Write(p []byte) (int, error) {
	s.keeper.Write(p) //nolint:errcheck // it cannot fail
	if s.kept != nil {
		s.kept.Write(p) //nolint:errcheck // likewise
	}
	if s.watch != nil {
		s.watch(s.name, p)
	}
	return len(p), nil
}

// finish closes the kept output and reports whether it holds more than the answer does.
func (s *stream) finish(cut bool) bool {
	have, err := s.kept.done(cut)
	if err != nil {
		s.log.Warn("failed to keep the whole output", "stream", s.name, "error", err)
	}
	return have && cut
}

func (s *stream) drop() error {
	if s.kept == nil {
		return nil
	}
	_, err := s.kept.done(false)
	return err
}

// StartShell starts a background command in the call's sandbox.
func (b *box) StartShell(ctx context.Context, r v1.ShellRequest) (v1.Shell, error) {
	return b.s.opts.Sandboxes.StartShellIn(ctx, b.principal, b.lease.ID, b.id, r, b.applyCaps)
}

// Shells lists the background commands in the box's scope.
func (b *box) Shells(ctx context.Context) ([]v1.Shell, error) {
	if b.scope != "" {
		return b.s.opts.Sandboxes.Shells(ctx, b.principal, b.scope)
	}
	leases, err := b.s.opts.Sandboxes.Sandboxes(ctx, b.principal, false)
	if err != nil {
		return nil, err
	}
	all := []v1.Shell{}
	for _, l := range leases {
		list, err := b.s.opts.Sandboxes.Shells(ctx, b.principal, l.ID)
		switch {
		case errdefs.IsNotFound(err): // the sandbox ended since it was listed
		case err != nil:
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// Output reads the output of a background command, or the kept output of an earlier call.
func (b *box) Output(
	ctx context.Context,
	id, stream string,
	offset, limit int64,
	wait time.Duration,
) (v1.Output, error) {
	r := core.OutputRequest{Stream: stream, Offset: offset, Limit: limit, Wait: wait}
	out, err := b.s.opts.Sandboxes.Output(ctx, b.principal, id, r)
	if errdefs.IsNotFound(err) && b.s.outputs != nil {
		if rest, kept := b.s.outputs.read(b.principal.Caller, id, r); kept == nil {
			return rest, nil
		}
	}
	return out, err
}

// KillShell ends a background command and returns its final state.
func (b *box) KillShell(ctx context.Context, id string, grace time.Duration) (v1.Shell, error) {
	return b.s.opts.Sandboxes.KillShell(ctx, b.principal, id, grace, false)
}

// ReadFile opens a file. The caller must close it.
func (b *box) ReadFile(ctx context.Context, r wire.FileRequest) (io.ReadCloser, v1.File, error) {
	return b.s.opts.Sandboxes.ReadFile(ctx, b.principal, b.lease.ID, r)
}

// WriteFile writes a file atomically.
func (b *box) WriteFile(ctx context.Context, r wire.FileRequest, body io.Reader) (v1.File, error) {
	return b.s.opts.Sandboxes.WriteFile(ctx, b.principal, b.lease.ID, r, body)
}

// EditFile replaces text in a file.
func (b *box) EditFile(ctx context.Context, r wire.EditRequest) (wire.EditReply, error) {
	return withUse(ctx, b, func(u *scheduler.Use) (wire.EditReply, error) { return u.EditFile(u.Ctx, r) })
}

// StatFile describes a file.
func (b *box) StatFile(ctx context.Context, r wire.FileRequest) (v1.File, error) {
	return b.s.opts.Sandboxes.StatFile(ctx, b.principal, b.lease.ID, r)
}

// ListFiles lists a directory and reports whether the list was truncated.
func (b *box) ListFiles(ctx context.Context, r wire.FileRequest) ([]v1.File, bool, error) {
	return b.s.opts.Sandboxes.ListFiles(ctx, b.principal, b.lease.ID, r)
}

// RemoveFile removes a file, or a directory if r.Recursive is set.
func (b *box) RemoveFile(ctx context.Context, r wire.FileRequest) error {
	return b.s.opts.Sandboxes.RemoveFile(ctx, b.principal, b.lease.ID, r)
}

// Glob finds files by name.
func (b *box) Glob(ctx context.Context, r wire.GlobRequest) (wire.GlobReply, error) {
	return withUse(ctx, b, func(u *scheduler.Use) (wire.GlobReply, error) { return u.Glob(u.Ctx, r) })
}

// Search finds lines in files.
func (b *box) Search(ctx context.Context, r wire.SearchRequest) (wire.SearchReply, error) {
	return withUse(ctx, b, func(u *scheduler.Use) (wire.SearchReply, error) { return u.Search(u.Ctx, r) })
}

func withUse[T any](ctx context.Context, b *box, do func(*scheduler.Use) (T, error)) (T, error) {
	var zero T
	u, err := b.lease.Enter(ctx)
	if err != nil {
		return zero, err
	}
	defer u.Leave()
	got, err := do(u)
	return got, b.lease.Explain(err)
}
