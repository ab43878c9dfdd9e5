// Package cli holds what the commands of orchestrator share: the streams and global flags, how to
// reach a server, arguments, output as tables or JSON, and the exit codes.
//
// It imports no other package of the command line. An [App] is made once for a process. Its methods
// may be called from several goroutines, but what they print is not synchronised.
package cli

import (
	"context"
	"io"
	"sync/atomic"
	"syscall"
)

// App is what commands share: streams, environment and the flags of all.
type App struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Lookup         func(string) (string, bool)
	Version        string
	Flags          globalFlags

	// serving: SIGHUP is no end, and told to hangups, which holds one.
	Serving atomic.Bool
	Hangups chan struct{}
}

// Input is standard input that ends with ctx: nothing else interrupts a Read
// that waits for a terminal or a pipe. What copies it ends with the process.
func (a *App) Input(ctx context.Context) io.Reader {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })
	go func() {
		_, err := io.Copy(w, a.Stdin)
		w.CloseWithError(err)
	}()
	return r
}

// Interrupted is why a context ends at a signal.
type Interrupted struct{ Signal syscall.Signal }

// Error names the signal.
func (e *Interrupted) Error() string { return "stopped by signal " + e.Signal.String() }

// globalFlags are the flags of every command.
type globalFlags struct {
	Config    string
	StateDir  string
	Address   string
	TokenFile string
	Output    string
}
