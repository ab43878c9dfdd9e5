package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// docker measures a Docker Engine, and the service on it.
func (b *bench) docker(ctx context.Context) error {
	const warm = 4
	if err := b.srv.configure("docker", b.engine.host, warm, 20); err != nil {
		return err
	}
	if _, err := b.srv.start(ctx); err != nil {
		return err
	}
	if err := errors.Join(b.srv.full(ctx, warm), b.idle("docker", shimOf)); err != nil {
		b.fail("idle cost, docker", err)
	}
	for _, m := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"the engine's exec", b.engineExec},
		{"docker run", func(ctx context.Context) error { return b.dockerRun(ctx, warm) }},
		{"cold start, docker", b.coldDocker},
	} {
		b.say("  " + m.what)
		if err := errors.Join(b.srv.quiet(ctx, warm), m.do(ctx)); err != nil {
			b.fail(m.what, err)
		}
	}
	return nil
}

// engineExec compares the service with the engine's exec in the same container.
func (b *bench) engineExec(ctx context.Context) error {
	s, err := b.srv.client.CreateSandbox(ctx, v1.SandboxRequest{})
	if err != nil {
		return err
	}
	var ours, theirs samples
	for range 4 {
		took, err := timed(b.n(100), func(int) error { return b.callTrue(ctx, s.ID) })
		if err != nil {
			return err
		}
		ours = append(ours, took...)
		if took, err = timed(b.n(10), func(int) error {
			return b.engine.exec(ctx, "orchestrator-"+s.ID, "/bin/true")
		}); err != nil {
			return err
		}
		theirs = append(theirs, took...)
	}
	f := factor(theirs.p50(), ours.p50())
	b.figure("exec of `/bin/true` through HTTP on docker, one caller, p50", "20× faster than the engine's exec",
		ms(ours.p50()),
		fmt.Sprintf("engine's exec %s: %s", ms(theirs.p50()), times(f)), f >= engineTarget)
	return b.srv.client.RemoveSandbox(ctx, s.ID)
}

// dockerRun compares one-shot calls with docker run.
func (b *bench) dockerRun(ctx context.Context, warm int) error {
	var ours, theirs samples
	for range 3 {
		s, err := b.oneShot(ctx, warm, 10)
		if err != nil {
			return err
		}
		ours = append(ours, s...)
		if s, err = timed(b.n(5), func(int) error {
			c := exec.CommandContext(ctx, "docker", "--host", b.engine.host, "run", "--rm", "--network", "none", "--entrypoint",
				"/bin/true", image)
			out, err := c.CombinedOutput()
			if err != nil {
				return errors.Join(err, errors.New(string(out)))
			}
			return nil
		}); err != nil {
			return err
		}
		theirs = append(theirs, s...)
	}
	f := factor(theirs.p50(), ours.p50())
	b.figure("one-shot call on a warm pool, docker, p50", "10 ms, 15× faster than `docker run --rm`", ms(ours.p50()),
		fmt.Sprintf("`docker run` %s: %s", ms(theirs.p50()), times(f)), ours.p50() <= oneShotTarget && f >= dockerRun)
	if b.oneShotOCI > 0 {
		f = factor(theirs.p50(), b.oneShotOCI)
		b.figure("one-shot call on a warm pool, oci, beside `docker run --rm`", "15× faster", ms(b.oneShotOCI),
			fmt.Sprintf("`docker run` %s: %s", ms(theirs.p50()), times(f)), f >= dockerRun)
	}
	return nil
}

// coldDocker compares a cold start with the engine's own create and start.
func (b *bench) coldDocker(ctx context.Context) error {
	var theirs samples
	ours, err := b.cold(ctx, 15, func() error {
		s, err := timed(1, func(int) error { _, err := b.engine.createStart(ctx, image); return err })
		theirs = append(theirs, s...)
		return errors.Join(err, b.engine.clear(ctx))
	})
	if err != nil {
		return err
	}
	f := factor(ours.p50(), theirs.p50())
	b.figure("cold start, docker, p50", "1.15× the engine's own create and start", ms(ours.p50()),
		fmt.Sprintf("create and start %s: %.2f×", ms(theirs.p50()), f), f <= coldDocker)
	return nil
}
