package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Targets. The README names them too.
const (
	addedTarget   = time.Millisecond // over bare fork and exec
	engineTarget  = 20.0             // times faster than the engine's exec
	callsTarget   = 900.0            // calls a second
	atOnceTarget  = 200 * time.Millisecond
	leaseP50      = 5 * time.Millisecond
	leaseP99      = 50 * time.Millisecond
	serverTarget  = int64(100e6)
	guestTarget   = int64(8e6)
	restartTarget = 2 * time.Second
)

var trueCommand = v1.Exec{Argv: []string{"/bin/true"}}

// manyOCI measures with many sandboxes.
func (b *bench) manyOCI(ctx context.Context) error {
	if err := b.srv.configure("oci", b.engine.host, crowd, crowd); err != nil {
		return err
	}
	began := time.Now()
	if _, err := b.srv.start(ctx); err != nil {
		return err
	}
	if err := b.srv.full(ctx, crowd); err != nil {
		return err
	}
	b.tell(fmt.Sprintf("start, and fill a pool of %d, oci", crowd),
		fmt.Sprintf("%.1f s", time.Since(began).Seconds()), "two at a time")
	if v, err := b.srv.client.Version(ctx); err == nil {
		b.report.host = append(b.report.host, [2]string{"orchestrator", v.Version}, [2]string{"cgroups", v.Cgroup},
			[2]string{"embedded runtime", v.Why})
	}
	slowest, err := b.restarts(ctx, 0)
	if err != nil {
		return err
	}
	b.resident()
	if err := b.idle("oci", ""); err != nil {
		b.fail("idle cost, oci", err)
	}
	ids, err := b.leases(ctx)
	if err != nil {
		return err
	}
	for _, m := range []struct {
		what string
		do   func(context.Context, []string) error
	}{{"exec", b.single}, {"eight callers", b.eight}, {"fifty at once", b.atOnce}} {
		b.say("  " + m.what)
		if err := m.do(ctx, ids); err != nil {
			b.fail(m.what, err)
		}
	}
	if slowest, err = b.restarts(ctx, slowest); err != nil {
		return err
	}
	b.figure(fmt.Sprintf("restart after `kill -9` with %d sandboxes, warm and leased, until ready, slowest", crowd),
		"2 s", ms(slowest), "", slowest <= restartTarget)
	return nil
}

// restarts kills the server and starts it again, twice.
func (b *bench) restarts(ctx context.Context, slowest time.Duration) (time.Duration, error) {
	for range 2 {
		had, err := guests(b.root)
		if err != nil {
			return 0, err
		}
		b.srv.kill()
		took, err := b.srv.start(ctx)
		if err != nil {
			return 0, err
		}
		slowest = max(slowest, took)
		have, err := guests(b.root)
		if err != nil {
			return 0, err
		}
		if len(had) < crowd || !holds(have, had) {
			return 0, fmt.Errorf("%d sandboxes before the restart, and %d after it; want all of them", len(had), len(have))
		}
		err = b.srv.poll(ctx, "all sandboxes are known again", pollTime, func() (bool, error) {
			p, err := b.srv.pool(ctx, "default")
			return p.Warm+p.Leased >= crowd, err
		})
		if err != nil {
			return 0, err
		}
	}
	return slowest, nil
}

// resident measures the memory of the idle service and guests.
func (b *bench) resident() {
	own, err := memoryOf(b.srv.pid())
	if err != nil {
		b.fail("resident size of the service", err)
		return
	}
	b.figure(fmt.Sprintf("resident, service with %d warm sandboxes", crowd),
		"under 100 MB", mb(own.rss), "PSS "+mb(own.pss), own.rss < serverTarget)
	found, err := guests(b.root)
	if err != nil || len(found) == 0 {
		b.fail("resident size of guests", errors.Join(err, fmt.Errorf("found %d guests, want some", len(found))))
		return
	}
	var largest, sum, processes int64
	for _, g := range found {
		m, err := memoryOf(g.pid)
		if err != nil {
			b.fail("resident size of a guest", err)
			return
		}
		largest = max(largest, m.rss)
		for _, pid := range g.all {
			if m, err := memoryOf(pid); err == nil { // it may have exited
				sum += m.pss
				processes++
			}
		}
	}
	n := int64(len(found))
	b.figure(fmt.Sprintf("resident, the largest of %d warm guests", n), "under 8 MB", mb(largest),
		fmt.Sprintf("PSS of all processes in a sandbox %s (%.1f of them)",
			mb(sum/n), float64(processes)/float64(n)), largest < guestTarget)
}

// leases leases all sandboxes of the full pool with env and workspace, twice, and keeps the second
// ones.
func (b *bench) leases(ctx context.Context) ([]string, error) {
	for i := range crowd {
		if _, err := b.srv.client.Workspaces.Create(ctx, "bench-"+strconv.Itoa(i)); err != nil {
			return nil, err
		}
	}
	var all samples
	var ids []string
	for round := range 2 {
		if round > 0 {
			if err := b.giveBack(ctx, ids); err != nil {
				return nil, err
			}
		}
		if err := b.srv.quiet(ctx, crowd); err != nil {
			return nil, err
		}
		ids = nil
		took, err := timed(crowd, func(i int) error {
			s, err := b.srv.client.CreateSandbox(ctx, v1.SandboxRequest{
				Workspace: "bench-" +
					strconv.Itoa(i), Env: map[string]string{"USER_NAME": "bench", "LANG": "C.UTF-8"}, WhenEmpty: "refuse",
			})
			ids = append(ids, s.ID)
			return err
		})
		if err != nil {
			return nil, err
		}
		all = append(all, took...)
	}
	b.figure("lease of a warm sandbox with env and workspace, p50", "5 ms", ms(all.p50()), "", all.p50() <= leaseP50)
	b.figure("the same, p99", "50 ms", ms(all.p99()), "longest "+ms(all.max()), all.p99() <= leaseP99)
	return ids, nil
}

// giveBack removes sandboxes, four at a time.
func (b *bench) giveBack(ctx context.Context, ids []string) error {
	took, err := together(4, len(ids), func(i int) error { return b.srv.client.RemoveSandbox(ctx, ids[i]) })
	if err == nil {
		b.tell("removal of a leased sandbox, until nothing is left, four at a time, p50", ms(took.p50()),
			"p99 "+ms(took.p99()))
	}
	return err
}

// together does n things with the given number of workers.
func together(workers, n int, do func(i int) error) (samples, error) {
	var mu sync.Mutex
	var all samples
	var errs []error
	var wg sync.WaitGroup
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	for range workers {
		wg.Go(func() {
			for i := range next {
				began := time.Now()
				err := do(i)
				mu.Lock()
				all = append(all, time.Since(began))
				if err != nil {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return all, errors.Join(errs...)
}

// callTrue runs true in a sandbox and checks the result.
func (b *bench) callTrue(ctx context.Context, id string) error {
	r, err := b.srv.client.Exec(ctx, id, trueCommand)
	if err == nil && (r.Ending != "exited" || r.ExitCode != 0) {
		err = fmt.Errorf("true ended %s %d", r.Ending, r.ExitCode)
	}
	return err
}

// bare runs the helper in a sandbox.
func (b *bench) bare(ctx context.Context, id string, n int) (samples, error) {
	r, err := b.srv.client.Exec(ctx, id,
		v1.Exec{Argv: []string{"/workspace/inside", "fork", strconv.Itoa(n), "/bin/true"}})
	if err != nil {
		return nil, err
	}
	var s samples
	if err := json.Unmarshal([]byte(r.Stdout), &s); err != nil {
		return nil, fmt.Errorf("the helper ended %s %d: %.300s", r.Ending, r.ExitCode, r.Stderr)
	}
	return s, nil
}

// single measures one caller, compared with bare fork and exec in the same sandbox.
func (b *bench) single(ctx context.Context, ids []string) error {
	f, err := os.Open(b.inside)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := b.srv.client.SandboxFiles(ids[0]).Write(ctx, "inside", f, client.WriteOptions{Mode: "0755"}); err != nil {
		return err
	}
	var ours, bare samples
	var service, caller time.Duration
	for range 5 {
		s, err := b.bare(ctx, ids[0], b.n(100))
		if err != nil {
			return err
		}
		bare = append(bare, s...)
		s, err = b.accounted(&service, &caller, func() (samples, error) {
			return timed(b.n(200), func(int) error { return b.callTrue(ctx, ids[0]) })
		})
		if err != nil {
			return err
		}
		ours = append(ours, s...)
	}
	n := time.Duration(len(ours))
	b.tell("processor time of a call: service, caller", ms(service/n)+", "+ms(caller/n), "")
	target := bare.p50() + addedTarget
	b.figure("exec of `/bin/true` through HTTP, one caller, p50", "bare + 1.0 ms: "+ms(target), ms(ours.p50()),
		fmt.Sprintf("bare %s, so + %s (p99: bare %s, exec %s)", ms(bare.p50()), ms(ours.p50()-bare.p50()), ms(bare.p99()),
			ms(ours.p99())),
		ours.p50() <= target)
	return b.parts(ctx, ids[0])
}

// accounted adds the CPU time that the service and this process use in the meantime.
func (b *bench) accounted(service, caller *time.Duration, do func() (samples, error)) (samples, error) {
	before, err := processorTime(b.srv.pid())
	if err != nil {
		return nil, err
	}
	own, err := processorTime(os.Getpid())
	if err != nil {
		return nil, err
	}
	s, err := do()
	if err != nil {
		return nil, err
	}
	after, err1 := processorTime(b.srv.pid())
	ownAfter, err2 := processorTime(os.Getpid())
	*service += after - before
	*caller += ownAfter - own
	return s, errors.Join(err1, err2)
}

// parts measures a call without a command.
func (b *bench) parts(ctx context.Context, id string) error {
	http, err := timed(b.n(500), func(int) error { _, err := b.srv.client.Version(ctx); return err })
	if err != nil {
		return err
	}
	files := b.srv.client.SandboxFiles(id)
	guest, err := timed(b.n(500), func(int) error { _, err := files.Stat(ctx, "inside"); return err })
	if err != nil {
		return err
	}
	b.tell("a request that ends in the service (`GET /v1/version`), p50", ms(http.p50()), "p99 "+ms(http.p99()))
	b.tell("a request that goes to the guest and runs nothing (stat of a file), p50", ms(guest.p50()),
		"p99 "+ms(guest.p99()))
	return nil
}

// eight measures callers without pauses, each on its own lease.
func (b *bench) eight(ctx context.Context, ids []string) error {
	const callers = 8
	until := time.Now().Add(b.d(4 * time.Second))
	began := time.Now()
	each := make([]samples, callers)
	_, err := together(callers, callers, func(i int) error {
		for time.Now().Before(until) {
			at := time.Now()
			if err := b.callTrue(ctx, ids[i]); err != nil {
				return err
			}
			each[i] = append(each[i], time.Since(at))
		}
		return nil
	})
	if err != nil {
		return err
	}
	took := time.Since(began)
	var all samples
	for _, s := range each {
		all = append(all, s...)
	}
	b.figure("the same, 8 callers", "900 calls/s", rate(len(all), took, "calls"),
		fmt.Sprintf("p50 %s, p99 %s", ms(all.p50()), ms(all.p99())),
		perSecond(len(all), took) >= callsTarget)
	return nil
}

// atOnce measures one concurrent call in every lease, and all in one lease.
func (b *bench) atOnce(ctx context.Context, ids []string) error {
	round := func(lease func(i int) string) (samples, error) {
		return timed(6, func(int) error {
			_, err := together(crowd, crowd, func(i int) error { return b.callTrue(ctx, lease(i)) })
			return err
		})
	}
	own, err := round(func(i int) string { return ids[i] })
	if err != nil {
		return err
	}
	b.figure("the same, 50 at once, all ended, slowest of 6 rounds", "200 ms", ms(own.max()),
		"p50 of the rounds "+ms(own.p50()), own.max() <= atOnceTarget)
	one, err := round(func(int) string { return ids[0] })
	if err != nil {
		return err
	}
	b.tell("50 at once in one and the same sandbox, all ended, slowest of 6 rounds", ms(one.max()),
		"p50 of the rounds "+ms(one.p50()))
	return nil
}
