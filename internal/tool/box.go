package tool

import (
	"context"
	"io"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// Box is where a tool runs: a sandbox, through the guest, within the call's
// caps. Paths are as the sandbox names them. It is made for one call.
type Box interface {
	Caps() Caps
	// Exec runs a command and waits for its end. Of both streams the caps' Cut
	// has been applied; rest is the id by which Output gives the whole, "" if
	// there is no more.
	Exec(ctx context.Context, x v1.Exec) (r v1.ExecResult, rest string, err error)
	// StartShell starts a background command in the call's sandbox.
	StartShell(ctx context.Context, r v1.ShellRequest) (v1.Shell, error)
	// Shells lists the caller's background commands: of the call's sandbox or
	// session, where it names one, else all.
	Shells(ctx context.Context) ([]v1.Shell, error)
	// Output reads output of a background command, or the rest of the output
	// of an earlier call, by its id.
	Output(ctx context.Context, id string, stream string, offset, limit int64, wait time.Duration) (v1.Output, error)
	// KillShell ends one: TERM, the grace time, KILL.
	KillShell(ctx context.Context, id string, grace time.Duration) (v1.Shell, error)

	ReadFile(ctx context.Context, r wire.FileRequest) (io.ReadCloser, v1.File, error)
	WriteFile(ctx context.Context, r wire.FileRequest, body io.Reader) (v1.File, error)
	EditFile(ctx context.Context, r wire.EditRequest) (wire.EditReply, error)
	StatFile(ctx context.Context, r wire.FileRequest) (v1.File, error)
	ListFiles(ctx context.Context, r wire.FileRequest) ([]v1.File, bool, error)
	RemoveFile(ctx context.Context, r wire.FileRequest) error
	Glob(ctx context.Context, r wire.GlobRequest) (wire.GlobReply, error)
	Search(ctx context.Context, r wire.SearchRequest) (wire.SearchReply, error)

	// Web makes one exchange with a host outside: by the web program, in a fresh
	// sandbox that is gone when it returns, and is not the call's. An answer with
	// a Fault is no error.
	Web(ctx context.Context, x Exchange) (web.Answer, error)
	// WebHost is what the service has for that. It is never nil.
	WebHost() *WebHost
	// Browse opens one page in a browser, in a fresh sandbox of its own. An error
	// may be a *browser.Fault.
	Browse(ctx context.Context, v Visit) (Sight, error)
	// BrowserHost is what the service has for that. It is never nil.
	BrowserHost() *BrowserHost
}
