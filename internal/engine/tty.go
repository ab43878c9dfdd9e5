package engine

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/idempotency"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// maxAttached bounds the clients attached to one terminal. Each uses two streams of the guest.
const maxAttached = 16

// OpenTerminal starts a background command on a new pseudo-terminal. A retry with the same
// idempotency key returns the same terminal.
func (e *Engine) OpenTerminal(
	ctx context.Context,
	p caller.Principal,
	sandbox string,
	r v1.TerminalRequest,
) (v1.Shell, error) {
	request := struct {
		Sandbox string
		v1.TerminalRequest
	}{sandbox, r}
	return idempotency.DoNew(ctx, e.idem, p, opTerminal, request, func(ctx context.Context, ref string) (v1.Shell, error) {
		tty := &wire.TTY{Term: r.Term, Cols: r.Cols, Rows: r.Rows}
		if f := tty.Check(); f != nil {
			return v1.Shell{}, usererror.Invalid(f.Field, "%s", f.Message)
		}
		req := v1.ShellRequest{
			Exec:       v1.Exec{Argv: r.Argv, Command: r.Command, Cwd: r.Cwd, Env: r.Env, User: r.User, TimeoutMS: r.TimeoutMS},
			SpoolBytes: r.SpoolBytes,
		}
		plain := len(r.Argv) == 0 && r.Command == ""
		if plain {
			req.Command = "bash" // falls back to sh; the argument vector is corrected below
		}
		return e.startShell(ctx, p, sandbox, ref, req, func(c *wire.Command) {
			c.TTY = tty
			if plain {
				c.Argv = c.Argv[:1]
			}
		})
	}, identity)
}

// Attachment is a client's connection to a terminal. Its methods may be called concurrently. Leave
// ends it.
type Attachment struct {
	e     *Engine
	row   store.Shell
	lease *scheduler.Lease
	use   *scheduler.Use
	state wire.Shell
	leave func()
}

// Attach connects to a terminal of the caller until ctx ends or Leave is called. An attachment
// counts as use of the lease.
func (e *Engine) Attach(ctx context.Context, p caller.Principal, sandbox, id string) (*Attachment, error) {
	row, l, use, err := e.shell(ctx, p, id)
	if err != nil {
		return nil, err
	}
	a := &Attachment{e: e, row: row, lease: l, use: use}
	leave, err := e.attached.enter(id)
	if err != nil {
		use.Leave()
		return nil, err
	}
	a.leave = sync.OnceFunc(func() { leave(); use.Leave() })
	switch {
	case row.Sandbox != sandbox:
		err = usererror.Errorf(errdefs.ErrNotFound, "shell %q not found in this sandbox", id)
	case !row.TTY:
		err = usererror.Errorf(
			errdefs.ErrFailedPrecondition,
			"shell %q has no terminal: read its output and write to its input instead",
			id,
		)
	default:
		a.state, err = use.Shell(use.Ctx, id)
		err = l.Explain(err)
	}
	if err != nil {
		a.Leave()
		return nil, err
	}
	return a, nil
}

// Leave ends the attachment; the terminal keeps running. It may be called more than once.
func (a *Attachment) Leave() { a.leave() }

// Span returns the offsets of the stored output at the time of Attach.
func (a *Attachment) Span() (start, end int64) { return a.state.Stdout.Start, a.state.Stdout.End }

// Size returns the terminal's size at the time of Attach.
func (a *Attachment) Size() (cols, rows int) {
	if a.state.TTY == nil {
		return 0, 0
	}
	return a.state.TTY.Cols, a.state.TTY.Rows
}

// Follow passes output from offset on to sink until the command ends and returns its result. A jump
// in the offsets means that output was dropped.
func (a *Attachment) Follow(offset int64, sink func(offset int64, data []byte) error) (v1.ExecResult, error) {
	end, err := a.use.Output(a.use.Ctx, wire.Output{ID: a.row.ID, Stream: wire.Stdout, Offset: offset, Follow: true}, sink)
	if err != nil {
		return v1.ExecResult{}, a.lease.Explain(err)
	}
	a.e.recordShellEnd(a.use.Ctx, end.Shell)
	sh := presentShell(a.row, end.Shell)
	if sh.Result == nil {
		return v1.ExecResult{}, errors.New("the output of a terminal ended before its command")
	}
	return *sh.Result, nil
}

// Type copies r to the terminal's input until r ends. taken is called with the total bytes that the
// terminal accepted.
func (a *Attachment) Type(r io.Reader, taken func(total int64)) error {
	return a.lease.Explain(a.use.Type(a.use.Ctx, a.row.ID, r, taken))
}

// Resize sets the terminal's size. If several clients are attached, the last call wins.
func (a *Attachment) Resize(cols, rows int) error {
	if f := wire.CheckSize(cols, rows); f != nil {
		return usererror.Invalid(f.Field, "%s", f.Message)
	}
	return a.lease.Explain(a.use.Resize(a.use.Ctx, wire.Resize{ID: a.row.ID, Cols: cols, Rows: rows}))
}

// Signal sends a signal to every process of the terminal's command.
func (a *Attachment) Signal(number int) error {
	if number < 1 || number > 64 {
		return usererror.Invalid("signal", "is %d: from 1 to 64", number)
	}
	return a.lease.Explain(a.use.Signal(a.use.Ctx, wire.Signal{ID: a.row.ID, Number: number, All: true}))
}

// Ended reports whether err means that the command has ended.
func Ended(err error) bool {
	g, ok := errors.AsType[*guest.Error](err)
	return ok && (errdefs.IsFailedPrecondition(g) || errdefs.IsNotFound(g))
}

// attachedCount counts the attached clients of each terminal. The zero value is ready to use.
type attachedCount struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *attachedCount) enter(id string) (leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n[id] >= maxAttached {
		return nil, usererror.Errorf(
			errdefs.ErrResourceExhausted,
			"terminal %[2]s has the maximum of %[1]d attached clients",
			maxAttached,
			id,
		)
	}
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[id]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.n[id]--; c.n[id] == 0 {
			delete(c.n, id)
		}
	}, nil
}
