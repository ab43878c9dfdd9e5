package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

const (
	spacing   = 30 * time.Millisecond
	silence   = time.Second
	burstSize = 10
)

// pauses measures calls that follow a pause, in one leased sandbox, each next to fork and exec on
// the host. Moving a process to another cgroup takes the kernel longest after a pause.
func (b *bench) pauses(ctx context.Context) error {
	if err := b.srv.configure("oci", b.engine.host, 1, 2); err != nil {
		return err
	}
	if _, err := b.srv.start(ctx); err != nil {
		return err
	}
	if err := b.srv.quiet(ctx, 1); err != nil {
		return err
	}
	s, err := b.srv.client.CreateSandbox(ctx, v1.SandboxRequest{})
	if err != nil {
		return err
	}
	if err := b.srv.full(ctx, 1); err != nil {
		return err
	}
	call := func(int) error { return b.callTrue(ctx, s.ID) }
	bare := func(int) error { return forkTrue(ctx) }
	return errors.Join(b.bursts(call, bare), b.spaced(call, bare))
}

// spaced measures single calls after short pauses.
func (b *bench) spaced(call, bare func(int) error) error {
	var ours, theirs samples
	for range b.n(200) {
		for _, x := range []struct {
			do  func(int) error
			all *samples
		}{{call, &ours}, {bare, &theirs}} {
			time.Sleep(spacing)
			s, err := timed(1, x.do)
			if err != nil {
				return err
			}
			*x.all = append(*x.all, s...)
		}
	}
	b.tell(fmt.Sprintf("exec of `/bin/true` through HTTP, calls %s apart, p50", spacing), ms(ours.p50()),
		fmt.Sprintf("p99 %s; fork and exec on the host %s, p99 %s", ms(ours.p99()), ms(theirs.p50()), ms(theirs.p99())))
	return nil
}

// bursts measures calls without a pause between them, after a long one.
func (b *bench) bursts(call, bare func(int) error) error {
	var ours, theirs, slowest, slowestBare samples
	for range b.n(20) {
		for _, x := range []struct {
			do      func(int) error
			all     *samples
			slowest *samples
		}{{call, &ours, &slowest}, {bare, &theirs, &slowestBare}} {
			time.Sleep(silence)
			s, err := timed(burstSize, x.do)
			if err != nil {
				return err
			}
			*x.all, *x.slowest = slices.Concat(*x.all, s), append(*x.slowest, s.max())
		}
	}
	b.tell(fmt.Sprintf("exec of `/bin/true` through HTTP, %d calls after %s of silence, p50", burstSize, silence),
		ms(ours.p50()), fmt.Sprintf("fork and exec on the host %s", ms(theirs.p50())))
	b.tell(fmt.Sprintf("the same, slowest of the %d, p50 of the rounds", burstSize), ms(slowest.p50()),
		fmt.Sprintf("slowest round %s; fork and exec on the host %s, %s", ms(slowest.max()), ms(slowestBare.p50()),
			ms(slowestBare.max())))
	return nil
}
