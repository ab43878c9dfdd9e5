// Command demo runs tool calls in warm sandboxes on the embedded runtime, through the real service
// and the public client, and prints how each ended. `make demo` runs it. It fails if a call does
// not end as expected or if anything is left on the machine.
//
// It owns the service's process and a temporary state directory, and removes both in any case, also
// at Ctrl-C. Its goroutines end with the call they belong to.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/testenv/testtime"
)

// wholeTime limits the whole run, which takes a few seconds.
var wholeTime = testtime.Scale(4 * time.Minute)

func main() {
	bin := flag.String("bin", "", "the orchestrator `program`")
	image := flag.String("image", "", "the sandbox image's `archive`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, *bin, *image)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run makes the calls and checks that nothing is left.
func run(ctx context.Context, bin, image string) (err error) {
	if bin == "" || image == "" {
		return errors.New("-bin and -image are needed: run `make demo`")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wholeTime, fmt.Errorf("not done within %s", wholeTime))
	defer cancel()
	began := time.Now()
	s, err := newService(ctx, bin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.remove(ctx)) }()
	if err := s.importImage(ctx, image); err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	v, err := s.client.Version(ctx)
	if err != nil {
		return err
	}
	if err := s.warm(ctx); err != nil {
		return err
	}
	fmt.Printf("orchestrator %s, runtime %s (%s), cgroup %s; ready after %s\n\n", v.Version, v.Runtime, v.Why, v.Cgroup,
		round(time.Since(began)))
	wrong := table(ctx, s)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := s.down(ctx); err != nil {
		return err
	}
	if left := s.left(); len(left) > 0 {
		return fmt.Errorf("left on the machine: %s", strings.Join(left, ", "))
	}
	fmt.Printf("\nAll sandboxes are destroyed; no process, mount or cgroup of them is left. %s in all.\n",
		round(time.Since(began)))
	if wrong > 0 {
		return fmt.Errorf("%d calls did not end as expected", wrong)
	}
	return nil
}

// table makes the calls one by one and prints a row for each. It returns the number of unexpected
// outcomes.
func table(ctx context.Context, s *service) (wrong int) {
	const form = "%-44s %-14s %9s   %s\n"
	fmt.Printf(form, "CALL", "ENDING", "TIME", "WHAT WAS SEEN")
	for _, c := range calls() {
		began := time.Now()
		got, err := c.do(ctx, s)
		took := round(time.Since(began))
		if ctx.Err() != nil {
			return wrong
		}
		switch {
		case err != nil:
			wrong++
			got.seen = "WRONG: " + strings.ReplaceAll(err.Error(), "\n", "; ")
		case got.ending != c.ending:
			wrong++
			got.seen = fmt.Sprintf("WRONG: expected %s; %s", c.ending, got.seen)
		}
		fmt.Printf(form, c.name, got.ending, took, got.seen)
	}
	return wrong
}

// round rounds a duration for the table.
func round(d time.Duration) time.Duration {
	if d > time.Second {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(time.Millisecond / 10)
}
