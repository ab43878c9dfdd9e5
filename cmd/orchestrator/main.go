// Command orchestrator runs commands in warm, disposable sandboxes without a network: it is the
// service, and the command line that uses it.
//
// This package assembles the commands of its subpackages and listens for signals. The commands read
// flags and configuration, call a server or an engine in this process, and print the answer. They
// hold no rules of the service. docs/exit-codes.md lists the exit codes, which cli/exit.go defines.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// version is set when the program is built.
var version = "dev"

func main() {
	a := &cli.App{
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
		Lookup:  os.LookupEnv,
		Version: version,
		Hangups: make(chan struct{}, 1),
	}
	ctx, stop := untilSignal(context.Background(), a)
	code := run(ctx, a, os.Args[1:])
	stop()
	os.Exit(code)
}

// untilSignal returns a context that ends at the first signal that asks the process to end. Later
// signals have their default effect: a second one ends the process at once.
func untilSignal(parent context.Context, a *cli.App) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() { // stop waits for it
		defer close(done)
		defer signal.Stop(signals)
		for {
			select {
			case s := <-signals:
				if s == syscall.SIGHUP && a.Serving.Load() {
					select {
					case a.Hangups <- struct{}{}:
					default: // one is pending
					}
					continue
				}
				signal.Stop(signals)
				if number, ok := s.(syscall.Signal); ok {
					cancel(&cli.Interrupted{Signal: number})
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
