package governed

import (
	"context"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
)

// Sandboxes is what a tool call needs from the layer below. The engine implements it.
type Sandboxes interface {
	Leases
	Commands
	Shells
}

// Leases finds and makes leases. It returns NotFound for another caller's.
type Leases interface {
	Acquire(ctx context.Context, p caller.Principal, r v1.SandboxRequest, a core.Acquisition) (*scheduler.Lease, error)
	FindLease(ctx context.Context, p caller.Principal, id string) (*scheduler.Lease, error)
	// Session returns the lease of a session and makes one if it has none.
	Session(
		ctx context.Context, p caller.Principal, name string, r v1.SandboxRequest, a core.Acquisition,
	) (*scheduler.Lease, error)
	// FindSession returns the live lease of a session, or nil.
	FindSession(ctx context.Context, p caller.Principal, name string) (*scheduler.Lease, error)
	EndSession(ctx context.Context, p caller.Principal, name string) error
	Sandbox(ctx context.Context, p caller.Principal, id string) (v1.Sandbox, error)
	Sandboxes(ctx context.Context, p caller.Principal, ended bool) ([]v1.Sandbox, error)
}

// Commands runs commands in leases. tune, if set, adjusts the guest's command.
type Commands interface {
	ExecIn(
		ctx context.Context, l *scheduler.Lease, id string, x v1.Exec, st core.Stream, tune func(*wire.Command),
	) (v1.ExecResult, error)
}

// Shells starts, lists, reads and ends background commands.
type Shells interface {
	StartShellIn(
		ctx context.Context, p caller.Principal, sandbox, id string, r v1.ShellRequest, tune func(*wire.Command),
	) (v1.Shell, error)
	Shells(ctx context.Context, p caller.Principal, sandbox string) ([]v1.Shell, error)
	Output(ctx context.Context, p caller.Principal, id string, r core.OutputRequest) (v1.Output, error)
	KillShell(ctx context.Context, p caller.Principal, id string, grace time.Duration, forget bool) (v1.Shell, error)
}
