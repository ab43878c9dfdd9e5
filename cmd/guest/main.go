// Command guest is PID 1 of every sandbox, and the bridge into a sandbox.
//
//	guest init [--alone D] [--ulimit NAME=N] [--shared PATH] [--stdio]   serve, as PID 1
//	guest bridge --line   connect stdin and stdout to the guest of this sandbox
//	guest version   print the protocol's version
//	guest install, guest pod   the steps before "init" in a pod of a cluster
//
// The binary is static. It needs no files of the image and reads no configuration from it. It
// writes warnings to stderr and nothing to stdout.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	err := run(context.Background(), os.Args[1:], log)
	var usage usageError
	switch {
	case errors.As(err, &usage):
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(exitUsage)
	case err != nil:
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(exitFailed)
	}
}

type usageError string

func (e usageError) Error() string { return string(e) }

const usage = usageError("usage: guest init [--alone DURATION] [--ulimit NAME=N]... [--shared PATH]... [--stdio] | " +
	"guest bridge --line | guest version")

func run(ctx context.Context, args []string, log *slog.Logger) error {
	if len(args) == 0 {
		return usage
	}
	switch {
	case args[0] == "init":
		o, err := parseInit(args[1:])
		if err != nil {
			return err
		}
		return runInit(ctx, o, log)
	case slices.Equal(args, wire.BridgeCommand()[1:]):
		return runBridge(ctx)
	case args[0] == "install":
		return runInstall(args[1:])
	case args[0] == "pod":
		return runPod(args[1:])
	case args[0] == "version" && len(args) == 1:
		_, err := fmt.Println("guest", wire.Version)
		return err
	}
	return usage
}

// initOptions are the options of `guest init`.
type initOptions struct {
	// alone is how long the guest runs without a host. 0 means indefinitely.
	alone time.Duration
	// stdio is set if the host is reached only through bridges and does not listen in wire.RunDir.
	stdio bool
	// ulimits apply to every process of commands.
	ulimits map[string]int64
	// pooled is set if the guest may wait for its first host: something else ends it before.
	pooled bool
	// shared lists mounted directories that every user may write to.
	shared []string
}

func parseInit(args []string) (initOptions, error) {
	var o initOptions
	f := flag.NewFlagSet("init", flag.ContinueOnError)
	f.SetOutput(io.Discard) // the returned error has the text
	f.DurationVar(&o.alone, "alone", runtime.DefaultOrphanTimeout,
		"end the sandbox after this time without a host; 0: never")
	f.Func("ulimit", "NAME=N, a limit of every command's processes", func(text string) error {
		name, number, _ := strings.Cut(text, "=")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return err
		}
		if o.ulimits == nil {
			o.ulimits = map[string]int64{}
		}
		o.ulimits[name] = n
		return runtime.ValidateUlimits(o.ulimits)
	})
	f.Func("shared", "PATH of a tmpfs that every user may write to", func(path string) error {
		o.shared = append(o.shared, path)
		return nil
	})
	f.BoolVar(&o.pooled, "pooled", false, "count the time without a host from the first host")
	f.BoolVar(&o.stdio, "stdio", false, "wait for bridges only")
	if err := f.Parse(args); err != nil {
		return o, usageError(err.Error())
	}
	if f.NArg() > 0 || o.alone < 0 {
		return o, usage
	}
	return o, nil
}
