package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// jobTarget is how much slower than one-shot calls a job may run its commands.
const jobTarget = 0.90

// jobs compares the commands of a job with as many one-shot calls, in turn. Both begin with a full
// pool.
func (b *bench) jobs(ctx context.Context) error {
	const parallel, warm, rounds = 8, 8, 4
	commands := b.n(250)
	if err := b.srv.configure("oci", b.engine.host, warm, crowd); err != nil {
		return err
	}
	if _, err := b.srv.start(ctx); err != nil {
		return err
	}
	var job, calls time.Duration
	for range rounds {
		if err := b.srv.quiet(ctx, warm); err != nil {
			return err
		}
		took, err := timed(1, func(int) error { return b.runJob(ctx, commands, parallel) })
		if err != nil {
			return err
		}
		job += took[0]
		if err := b.srv.quiet(ctx, warm); err != nil {
			return err
		}
		took, err = timed(1, func(int) error {
			_, err := together(parallel, commands, func(int) error { return b.runTrue(ctx) })
			return err
		})
		if err != nil {
			return err
		}
		calls += took[0]
	}
	n := rounds * commands
	ratio := factor(calls, job)
	b.figure(fmt.Sprintf("%d commands of jobs at parallelism %d, oci, in %d jobs", n, parallel, rounds),
		"90 % of the rate of one-shot calls", rate(n, job, "commands"),
		fmt.Sprintf("as many one-shot calls, %d callers, %s: %.0f %%", parallel, rate(n, calls, "calls"), 100*ratio),
		ratio >= jobTarget)
	return nil
}

// runJob runs a job of n commands and checks that all succeeded.
func (b *bench) runJob(ctx context.Context, n, parallel int) error {
	numbers := make([]string, n)
	for i := range numbers {
		numbers[i] = strconv.Itoa(i)
	}
	j, err := b.srv.client.Jobs.Create(ctx, v1.JobRequest{
		Exec: trueCommand, Matrix: map[string][]string{"NUMBER": numbers}, Parallelism: parallel,
	})
	if err != nil {
		return err
	}
	if j, err = b.srv.client.Jobs.Wait(ctx, j.ID); err != nil {
		return err
	}
	if j.Commands.Succeeded != n {
		return fmt.Errorf("job %s: %d of %d commands succeeded", j.Ending, j.Commands.Succeeded, n)
	}
	return nil
}
