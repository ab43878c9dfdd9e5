package governed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy/argv"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/tracing"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/sandboxed"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/webtool"
)

// runTool gets a sandbox for the call and runs the tool in it.
func (t *transaction) runTool(ctx context.Context) (any, tool.Outcome, error) {
	var l *scheduler.Lease // nil for a tool that needs none
	var scope string       // the sandbox whose background commands are listed, or "" for all of the caller's
	if t.ready.NeedsSandbox {
		var done func()
		var err error
		if l, done, err = t.leaseSandbox(ctx); err != nil {
			return nil, tool.Outcome{}, err
		}
		defer done()
		t.notePlacement(l)
	} else {
		var err error
		if scope, err = t.findScope(ctx); err != nil {
			return nil, tool.Outcome{}, err
		}
	}
	if err := t.useApproval(ctx); err != nil {
		return nil, tool.Outcome{}, err
	}
	t.toolStarted = true
	return t.run(ctx, l, scope)
}

// run runs the checked call with what its tool needs.
func (t *transaction) run(ctx context.Context, l *scheduler.Lease, scope string) (any, tool.Outcome, error) {
	caps := t.tool.Caps()
	switch run := t.ready.Call.(type) {
	case tool.Run[tool.Runner]:
		t.noteEffect()
		r := &runner{transaction: t, caps: caps, lease: l, check: t.argvRules()}
		out, o, err := run(ctx, caps, r)
		return out, o, r.refused(err)
	case tool.Run[tool.Shells]:
		t.noteEffect()
		return run(ctx, caps, &shells{t.s, t.principal.Keyless(), scope})
	case tool.Run[tool.Files]:
		use, err := l.Enter(ctx)
		if err != nil {
			return nil, tool.Outcome{}, err
		}
		defer use.Leave()
		t.noteEffect()
		out, o, err := run(use.Ctx, caps, use)
		return out, o, l.Explain(err)
	case tool.Run[webtool.Web]:
		return run(ctx, caps, t.s.opts.Web.Web(t.webCall(caps)))
	case tool.Run[webtool.Browser]:
		return run(ctx, caps, t.s.opts.Web.Browser(t.webCall(caps)))
	}
	return nil, tool.Outcome{}, fmt.Errorf("tool %s: calls cannot provide what %T needs", t.name, t.ready.Call)
}

// noteEffect notes that from now on the call may have changed something. The built-in tool decides
// that: a profile may declare no effects for a tool that writes.
func (t *transaction) noteEffect() { t.mayHaveRun = !t.shaped.Base.ReadOnly }

// webCall returns the call for a web tool, which sends nothing before it has a sandbox of its own.
func (t *transaction) webCall(caps tool.Caps) sandboxed.Call {
	return sandboxed.Call{
		ID: t.id, Principal: t.principal.Keyless(), Profile: t.profile.Profile.Name, Caps: caps,
		Placed: func(l *scheduler.Lease) {
			t.noteEffect()
			t.notePlacement(l)
		},
	}
}

// argvRules returns the rules that the guest enforces on the command's arguments, or nil.
func (t *transaction) argvRules() *argv.Rules {
	if p := t.tool.Policy(); p != nil && t.ready.Command != nil && len(t.ready.Command.Argv) > 0 {
		return p.ArgvRules()
	}
	return nil
}

// runner implements tool.Runner for one call. Commands run within the call's caps.
type runner struct {
	*transaction
	caps  tool.Caps
	lease *scheduler.Lease
	check *argv.Rules
}

// refused returns the policy's refusal if the guest refused the command's arguments.
func (r *runner) refused(err error) error {
	g, ok := errors.AsType[*guest.Error](err)
	if !ok || r.check == nil || g.Field != "argv" || !errdefs.IsPermissionDenied(err) {
		return err
	}
	return r.refuse(policy.Verdict{
		Action: policy.Deny, Class: policy.ClassArgument, Rule: "sandbox:argv", Message: g.Message,
	})
}

// Exec runs a command. rest is the id under which the whole output can be read if the answer holds
// only a part, or "".
func (r *runner) Exec(ctx context.Context, x v1.Exec) (res v1.ExecResult, rest string, err error) {
	cut := r.caps.Output
	if cut.Limit == 0 {
		cut.Limit, cut.Unit = r.s.opts.MaxOutput, tool.Bytes
	}
	out, errOut := r.stream("stdout", cut), r.stream("stderr", cut)
	st := core.Stream{Stdout: out, Stderr: errOut}
	r.addTraceParent(ctx, &x)
	res, err = r.s.opts.Sandboxes.ExecIn(ctx, r.lease, r.id, x, st, r.applyCaps)
	if err != nil {
		out.finish(false)
		errOut.finish(false)
		return res, "", err
	}
	var cutOut, cutErr bool
	res.Stdout, cutOut = out.keeper.Text()
	res.Stderr, cutErr = errOut.keeper.Text()
	res.Truncated = cutOut || cutErr
	moreOut, moreErr := out.finish(cutOut), errOut.finish(cutErr) // both: each closes its file
	if moreOut || moreErr {
		rest = r.id
	}
	return res, rest, nil
}

// Start starts a background command in the call's sandbox.
func (r *runner) Start(ctx context.Context, req v1.ShellRequest) (v1.Shell, error) {
	r.addTraceParent(ctx, &req.Exec)
	return r.s.opts.Sandboxes.StartShellIn(ctx, r.principal.Keyless(), r.lease.ID, r.id, req, r.applyCaps)
}

// addTraceParent sets TRACEPARENT of a command if the profile says so and the call has a trace. A
// value that the caller gave stays.
func (r *runner) addTraceParent(ctx context.Context, x *v1.Exec) {
	const name = "TRACEPARENT"
	parent := ""
	if r.profile.Profile.TraceParent {
		parent = tracing.Parent(ctx)
	}
	if _, given := x.Env[name]; given || parent == "" {
		return
	}
	env := maps.Clone(x.Env)
	if env == nil {
		env = map[string]string{}
	}
	env[name] = parent
	x.Env = env
}

func (r *runner) applyCaps(c *wire.Command) {
	c.Check, c.MemoryBytes, c.CPUs = r.check, r.caps.MemoryBytes, r.caps.CPUs
	if c.Cwd != "" { // The profile sets the directory, so the caller's directory must be below it.
		c.Dirs = r.caps.Dirs
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

var _ io.Writer = (*stream)(nil)

func (r *runner) stream(name string, cut tool.Cut) *stream {
	s := &stream{name: name, keeper: tool.NewKeeper(cut), watch: r.watch.Output, log: r.s.log}
	if r.s.outputs != nil {
		s.kept = r.s.outputs.newOutput(r.principal.Caller, r.id, name, cut.Limit)
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

// finish closes the kept output and reports whether it holds more than the answer does. A failure
// to keep it is only logged.
func (s *stream) finish(cut bool) bool {
	if s.kept == nil {
		return false
	}
	have, err := s.kept.done(cut)
	if err != nil {
		s.log.Warn("failed to keep the whole output", "stream", s.name, "error", err)
	}
	return have && cut
}

// shells implements tool.Shells for one call.
type shells struct {
	*Service
	principal caller.Principal
	scope     string // the sandbox that List lists, or "" for all of the caller's
}

// List lists the background commands in the scope.
func (s *shells) List(ctx context.Context) ([]v1.Shell, error) {
	if s.scope != "" {
		return s.opts.Sandboxes.Shells(ctx, s.principal, s.scope)
	}
	leases, err := s.opts.Sandboxes.Sandboxes(ctx, s.principal, false)
	if err != nil {
		return nil, err
	}
	all := []v1.Shell{}
	for _, l := range leases {
		list, err := s.opts.Sandboxes.Shells(ctx, s.principal, l.ID)
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
func (s *shells) Output(
	ctx context.Context, id, stream string, offset, limit int64, wait time.Duration,
) (v1.Output, error) {
	r := core.OutputRequest{Stream: stream, Offset: offset, Limit: limit, Wait: wait}
	out, err := s.opts.Sandboxes.Output(ctx, s.principal, id, r)
	if errdefs.IsNotFound(err) && s.outputs != nil {
		if rest, kept := s.outputs.read(s.principal.Caller, id, r); kept == nil {
			return rest, nil
		}
	}
	return out, err
}

// Kill ends a background command and returns its final state.
func (s *shells) Kill(ctx context.Context, id string, grace time.Duration) (v1.Shell, error) {
	return s.opts.Sandboxes.KillShell(ctx, s.principal, id, grace, false)
}
