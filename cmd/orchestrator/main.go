// Orchestrator runs commands in warm, disposable sandboxes without a network:
// the service, and the commands that use it.
//
// This package is wiring: it reads flags and configuration, opens the parts in
// order, hands requests to the engine (in process) or to a server (package
// client), and prints what comes back. It holds no rule of the service. main
// owns the goroutine that listens for signals; each command owns its own.
// What a process exits with is in exit.go and docs/exit-codes.md.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// version is set when the program is built.
var version = "dev"

func main() {
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, lookup: os.LookupEnv, version: version, hangups: make(chan struct{}, 1)}
	ctx, stop := a.untilSignal(context.Background())
	code := a.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// app is what commands share: streams, environment and the flags of all.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	lookup         func(string) (string, bool)
	version        string
	flags          globalFlags

	// serving: SIGHUP is no end, and told to hangups, which holds one.
	serving atomic.Bool
	hangups chan struct{}
}

// input is standard input that ends with ctx: nothing else interrupts a Read
// that waits for a terminal or a pipe. What copies it ends with the process.
func (a *app) input(ctx context.Context) io.Reader {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })
	go func() {
		_, err := io.Copy(w, a.stdin)
		w.CloseWithError(err)
	}()
	return r
}

// interrupted is why a context ends at a signal.
type interrupted struct{ signal syscall.Signal }

// Error names the signal.
func (e *interrupted) Error() string { return "stopped by signal " + e.signal.String() }

// untilSignal ends a context at the first signal that asks for an end. After
// that signals do what they do by themselves: a second one ends the process at
// once.
func (a *app) untilSignal(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() { // stop waits for it
		defer close(done)
		defer signal.Stop(signals) // at the latest
		for {
			select {
			case s := <-signals:
				if s == syscall.SIGHUP && a.serving.Load() {
					select {
					case a.hangups <- struct{}{}:
					default: // one is waiting
					}
					continue
				}
				signal.Stop(signals)
				if number, ok := s.(syscall.Signal); ok {
					cancel(&interrupted{number})
				}
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}
