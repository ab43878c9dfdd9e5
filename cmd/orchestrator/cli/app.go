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

// App holds what all commands share: streams, environment and global flags.
type App struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Lookup         func(string) (string, bool)
	Version        string
	Flags          globalFlags

	// While Serving is set, SIGHUP does not end the process. It is sent to Hangups instead, which
	// has capacity 1.
	Serving atomic.Bool
	Hangups chan struct{}
}

// Input returns standard input, which fails when ctx ends. Nothing else interrupts a Read of a
// terminal or a pipe. The goroutine that copies ends with the process.
func (a *App) Input(ctx context.Context) io.Reader {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })
	go func() {
		_, err := io.Copy(w, a.Stdin)
		w.CloseWithError(err)
	}()
	return r
}

// Interrupted is the cause of a context that a signal ended.
type Interrupted struct{ Signal syscall.Signal }

// Error implements error.
func (e *Interrupted) Error() string { return "stopped by signal " + e.Signal.String() }

// globalFlags holds the flags of every command.
type globalFlags struct {
	Config    string
	StateDir  string
	Address   string
	TokenFile string
	CAFile    string
	CertFile  string
	KeyFile   string
	Output    string
	Format    string
	Quiet     bool // of commands with AddTableFlags
	NoTrunc   bool // the same
}
