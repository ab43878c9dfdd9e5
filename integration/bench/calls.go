package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// More targets.
const (
	oneShotTarget = 10 * time.Millisecond
	dockerRun     = 15.0 // times faster
	sustained     = 25.0 // calls a second
	coldTarget    = 60 * time.Millisecond
	coldDocker    = 1.15 // times the engine's own
	outputTarget  = 500.0
	flat          = int64(16e6) // growth of the service while output passes through
)

var trueRun = v1.Run{Exec: trueCommand}

// callsOCI measures calls with a small pool.
func (b *bench) callsOCI(ctx context.Context) error {
	const warm = 8
	if err := b.srv.configure("oci", b.engine.host, warm, crowd); err != nil {
		return err
	}
	if _, err := b.srv.start(ctx); err != nil {
		return err
	}
	for _, m := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"one-shot call", func(ctx context.Context) error {
			s, err := b.oneShot(ctx, warm, 40)
			if err == nil {
				b.oneShotOCI = s.p50()
				b.figure("one-shot call on a warm pool, oci, p50", "10 ms", ms(s.p50()), "p99 "+ms(s.p99()),
					s.p50() <= oneShotTarget)
			}
			return err
		}},
		{"sustained one-shot calls", b.sustain},
		{"cold start, oci", func(ctx context.Context) error {
			s, err := b.cold(ctx, 20, nil)
			if err == nil {
				b.figure("cold start, oci, p50", "60 ms", ms(s.p50()), "p99 "+ms(s.p99()), s.p50() <= coldTarget)
			}
			return err
		}},
		{"raw output", b.output},
	} {
		b.say("  " + m.what)
		if err := errors.Join(b.srv.quiet(ctx, warm), m.do(ctx)); err != nil {
			b.fail(m.what, err)
		}
	}
	return nil
}

// runTrue measures a one-shot call.
func (b *bench) runTrue(ctx context.Context) error {
	r, err := b.srv.client.Run(ctx, trueRun)
	if err == nil && (r.Ending != "exited" || r.ExitCode != 0) {
		err = fmt.Errorf("true ended %s %d", r.Ending, r.ExitCode)
	}
	return err
}

// oneShot makes calls one by one from a full pool.
func (b *bench) oneShot(ctx context.Context, warm, n int) (samples, error) {
	var all samples
	for range b.n(n) {
		if err := b.srv.quiet(ctx, warm); err != nil {
			return nil, err
		}
		s, err := timed(1, func(int) error { return b.runTrue(ctx) })
		if err != nil {
			return nil, err
		}
		all = append(all, s...)
	}
	return all, nil
}

// sustain makes one-shot calls without a pause. It empties the initial pool before it starts to
// count.
func (b *bench) sustain(ctx context.Context) error {
	const callers = 4
	begin := time.Now().Add(b.d(3 * time.Second))
	until := begin.Add(b.d(15 * time.Second))
	each := make([]samples, callers)
	_, err := together(callers, callers, func(i int) error {
		for time.Now().Before(until) {
			at := time.Now()
			if err := b.runTrue(ctx); err != nil {
				return err
			}
			if at.After(begin) && time.Now().Before(until) {
				each[i] = append(each[i], time.Since(at))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	took := until.Sub(begin)
	var all samples
	for _, s := range each {
		all = append(all, s...)
	}
	b.figure("one-shot calls, sustained, oci, 4 callers", "25 calls/s", rate(len(all), took, "calls"),
		fmt.Sprintf("p50 %s, p99 %s", ms(all.p50()), ms(all.p99())),
		perSecond(len(all), took) >= sustained)
	return nil
}

// cold leases from a template without warm sandboxes, in turn with beside if that is set.
func (b *bench) cold(ctx context.Context, n int, beside func() error) (samples, error) {
	var all samples
	for range b.n(n) {
		var id string
		s, err := timed(1, func(int) error {
			got, err := b.srv.client.CreateSandbox(ctx, v1.SandboxRequest{Template: "cold", WhenEmpty: "cold"})
			id = got.ID
			if err == nil && got.Warm {
				err = errors.New("the sandbox was warm, want a cold one")
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		all = append(all, s...)
		if err := b.srv.client.RemoveSandbox(ctx, id); err != nil {
			return nil, err
		}
		if beside != nil {
			if err := beside(); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// output sends a large stream through the service.
func (b *bench) output(ctx context.Context) error {
	for _, template := range []string{"default", "wide"} {
		s, err := b.srv.client.CreateSandbox(ctx, v1.SandboxRequest{Template: template, WhenEmpty: "cold"})
		if err != nil {
			return err
		}
		before, err := memoryOf(b.srv.pid())
		if err != nil {
			return err
		}
		if err := resetPeak(b.srv.pid()); err != nil {
			return err
		}
		n, took, err := b.raw(ctx, s.ID, 2<<30)
		if err != nil {
			return err
		}
		highest, err := peak(b.srv.pid())
		if err != nil {
			return err
		}
		speed := float64(n) / 1e6 / took.Seconds()
		measured := fmt.Sprintf("%.0f MB/s", speed)
		beside := fmt.Sprintf("service resident before %s, at most %s", mb(before.rss), mb(highest))
		if template == "default" {
			b.figure("raw output, one stream, memory flat (less than 16 MB more)", "500 MB/s", measured, beside,
				speed >= outputTarget && highest-before.rss < flat)
		} else {
			b.tell("raw output, one stream, of a sandbox with two processors", measured, beside)
		}
		if err := b.srv.client.RemoveSandbox(ctx, s.ID); err != nil {
			return err
		}
	}
	return nil
}

// raw runs a command with a large output and counts its bytes.
func (b *bench) raw(ctx context.Context, id string, size int64) (int64, time.Duration, error) {
	if b.short {
		size /= 10
	}
	body, err := json.Marshal(v1.Exec{Argv: []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}})
	if err != nil {
		return 0, 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://orchestrator/v1/sandboxes/"+id+"/exec",
		strings.NewReader(string(body)))
	if err != nil {
		return 0, 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/octet-stream")
	began := time.Now()
	resp, err := b.srv.http.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, make([]byte, 256<<10))
	if err == nil && (resp.StatusCode != http.StatusOK || n != size) {
		err = fmt.Errorf("got %d of %d bytes, with %s and %s", n, size, resp.Status, resp.Trailer.Get("Orchestrator-Result"))
	}
	return n, time.Since(began), err
}
