package tool

import (
	"context"
	"io"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// Box runs a tool's work in a sandbox, through the guest and within the call's caps. Paths are
// those of the sandbox. A Box serves one call.
type Box interface {
	Caps() Caps
	// Exec runs a command and waits for it to end. Both streams are truncated as the caps' Cut
	// says. rest is the id by which Output returns the whole, or "" if nothing was omitted.
	Exec(ctx context.Context, x v1.Exec) (r v1.ExecResult, rest string, err error)
	// StartShell starts a background command in the call's sandbox.
	StartShell(ctx context.Context, r v1.ShellRequest) (v1.Shell, error)
	// Shells lists the caller's background commands: those of the call's sandbox or session if it
	// names one, otherwise all.
	Shells(ctx context.Context) ([]v1.Shell, error)
	// Output reads output of a background command, or the rest of an earlier call's output, by its
	// id.
	Output(ctx context.Context, id string, stream string, offset, limit int64, wait time.Duration) (v1.Output, error)
	// KillShell ends a background command: TERM, the grace period, KILL.
	KillShell(ctx context.Context, id string, grace time.Duration) (v1.Shell, error)

	ReadFile(ctx context.Context, r wire.FileRequest) (io.ReadCloser, v1.File, error)
	WriteFile(ctx context.Context, r wire.FileRequest, body io.Reader) (v1.File, error)
	EditFile(ctx context.Context, r wire.EditRequest) (wire.EditReply, error)
	StatFile(ctx context.Context, r wire.FileRequest) (v1.File, error)
	ListFiles(ctx context.Context, r wire.FileRequest) ([]v1.File, bool, error)
	RemoveFile(ctx context.Context, r wire.FileRequest) error
	Glob(ctx context.Context, r wire.GlobRequest) (wire.GlobReply, error)
	Search(ctx context.Context, r wire.SearchRequest) (wire.SearchReply, error)

	// Web makes one exchange with an external host. The web program makes it in a separate, fresh
	// sandbox that is removed before Web returns. An answer with a Fault is not an error.
	Web(ctx context.Context, x Exchange) (web.Answer, error)
	// WebHost returns the service's resources for web tools. It is never nil.
	WebHost() *WebHost
	// Browse opens one page in a browser, in a separate, fresh sandbox. The error may be a
	// *browser.Fault.
	Browse(ctx context.Context, v Visit) (Sight, error)
	// BrowserHost returns the service's resources for browser.open. It is never nil.
	BrowserHost() *BrowserHost
}
