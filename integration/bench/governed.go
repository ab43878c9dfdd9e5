package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// Targets of governed calls.
const (
	verdictTarget  = 50 * time.Microsecond
	governedTarget = 300 * time.Microsecond
	writtenTarget  = 10_000.0
	verifiedTarget = 100_000.0
	listenTarget   = 50 * time.Millisecond
)

// sample is a command of 200 characters, typical for agents.
const sample = `cd /workspace/service && go test ./... 2>&1 | tee /tmp/test.log | grep -E '^(ok|FAIL|---)' | head -n 50; ` +
	`test -s /tmp/test.log && sed -n '1,20p' /tmp/test.log | awk '{print $1, $NF}' | sort -u > summary`

// governed measures the cost of policy and audit.
func (b *bench) governed(ctx context.Context) error {
	for _, m := range []struct {
		what string
		do   func(context.Context) error
	}{{"verdict", b.verdict}, {"audit", b.audit}, {"governed call", b.governedCall}} {
		b.say("  " + m.what)
		if err := m.do(ctx); err != nil {
			b.fail(m.what, err)
		}
	}
	return nil
}

// verdict decides on a command in this process.
func (b *bench) verdict(context.Context) error {
	set, err := profile.Builtin()
	if err != nil {
		return err
	}
	if n := len(sample); n < 195 || n > 205 {
		return fmt.Errorf("the sample has %d characters", n)
	}
	p, err := set.Get("phase2")
	if err != nil {
		return err
	}
	one := func(int) error {
		v, err := p.Check("", sample, nil)
		if err == nil && v.Action != "allow" {
			err = fmt.Errorf("the sample gets %s by %s", v.Action, v.Rule)
		}
		return err
	}
	if _, err := timed(b.n(1000), one); err != nil {
		return err
	}
	s, err := timed(b.n(20_000), one)
	if err != nil {
		return err
	}
	b.figure("verdict on a command of 200 characters, profile phase2, p50", "50 µs", us(s.p50()), "p99 "+us(s.p99()),
		s.p50() <= verdictTarget)
	return nil
}

// us formats a duration in microseconds, rounded up.
func us(d time.Duration) string {
	return fmt.Sprintf("%.1f µs", float64((d+99)/100)/10)
}

// audit writes and verifies records in this process, on the disk of this run's state directories.
func (b *bench) audit(ctx context.Context) (err error) {
	dir := filepath.Join(b.root, "audit")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	db, err := store.OpenAudit(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	l, err := audit.Open(ctx, audit.Options{Store: db, Head: filepath.Join(dir, "audit.head")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	input, err := json.Marshal(map[string]string{"command": sample})
	if err != nil {
		return err
	}
	if err := b.auditThroughput(ctx, l, input); err != nil {
		return err
	}
	one, err := timed(b.n(500), func(i int) error {
		e, err := openCall(ctx, l,
			audit.Record{Call: fmt.Sprint("one-", i), Caller: "bench", Action: "system.bash", Input: input})
		if err != nil {
			return err
		}
		return e.Close(ctx, audit.Record{Ending: "exited"})
	})
	b.tell("opening a record and queueing its close, one caller, p50", us(one.p50()), "p99 "+us(one.p99()))
	return err
}

// openCall opens the record of a call and waits until it is written.
func openCall(ctx context.Context, l *audit.Log, r audit.Record) (*audit.Entry, error) {
	e, err := l.Start(ctx, r)
	if err != nil {
		return nil, err
	}
	err = e.Opened(ctx)
	return e, err
}

// auditThroughput measures how fast many callers write records, and how fast these are verified.
func (b *bench) auditThroughput(ctx context.Context, l *audit.Log, input json.RawMessage) error {
	const writers = 16
	calls := b.n(30_000)
	code := 0
	began := time.Now()
	_, err := together(writers, calls, func(i int) error {
		e, err := openCall(ctx, l, audit.Record{
			Call:    fmt.Sprint("call-", i),
			Caller:  "bench",
			Profile: "phase2",
			Trust:   3,
			Via:     "http",
			Action:  "system.bash",
			Input:   input,
		})
		if err != nil {
			return err
		}
		return e.Close(ctx,
			audit.Record{Verdict: "allow", Rule: "default", Sandbox: "none", Ending: "exited", ExitCode: &code, DurationMS: 1})
	})
	if err == nil {
		err = l.Flush(ctx)
	}
	if err != nil {
		return err
	}
	took := time.Since(began)
	b.figure(fmt.Sprintf("audit records written, %d callers", writers),
		"10000/s", rate(2*calls, took, "records"), "two to a call", perSecond(2*calls, took) >= writtenTarget)
	began = time.Now()
	r, err := l.Verify(ctx, "")
	if err != nil {
		return err
	}
	if !r.OK || r.Records != int64(2*calls) {
		return fmt.Errorf("the log of %d records is not whole: %+v", 2*calls, r)
	}
	spent := time.Since(began)
	b.figure("audit records verified", "100000/s", rate(2*calls, spent, "records"), "",
		perSecond(2*calls, spent) >= verifiedTarget)
	return nil
}

// governedCall compares a command as a bare exec and as a tool call, alternating, in one sandbox.
func (b *bench) governedCall(ctx context.Context) (err error) {
	if err := b.srv.configure("oci", b.engine.host, 2, crowd); err != nil {
		return err
	}
	if _, err := b.srv.start(ctx); err != nil {
		return err
	}
	if err := b.srv.quiet(ctx, 2); err != nil {
		return err
	}
	box, err := b.srv.client.CreateSandbox(ctx, v1.SandboxRequest{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.srv.client.RemoveSandbox(context.WithoutCancel(ctx), box.ID)) }()
	tool := func(profile string) func(int) error {
		r := v1.ToolCall{Profile: profile, Sandbox: box.ID, Input: json.RawMessage(`{"command": "true"}`)}
		return func(int) error {
			got, err := b.srv.client.Tools.Call(ctx, "system.bash", r, client.CallOptions{})
			if err == nil && got.Ending != "exited" {
				err = fmt.Errorf("a governed call ended %s: %s", got.Ending, got.Text)
			}
			return err
		}
	}
	ways := []struct {
		name string
		do   func(int) error
		all  samples
	}{
		{name: "exec", do: func(int) error {
			r, err := b.srv.client.Exec(ctx, box.ID, v1.Exec{Command: "true"})
			if err == nil && r.Ending != "exited" {
				err = fmt.Errorf("true ended %s", r.Ending)
			}
			return err
		}},
		{name: "default", do: tool("default")},
		{name: "phase2", do: tool("phase2")},
	}
	for round := range b.n(40) + 1 {
		for i := range ways {
			s, err := timed(25, ways[i].do)
			if err != nil {
				return fmt.Errorf("%s: %w", ways[i].name, err)
			}
			if round > 0 { // the first round warms up
				ways[i].all = append(ways[i].all, s...)
			}
		}
	}
	bare := ways[0].all.p50()
	added := ways[2].all.p50() - bare
	b.figure("governed call (profile phase2: policy, mapping, audit), p50 over a bare exec", "+ 300 µs", "+ "+us(added),
		fmt.Sprintf("exec of `bash -c true` %s, governed %s", ms(bare), ms(ways[2].all.p50())), added <= governedTarget)
	b.tell("governed call, profile default, p50 over a bare exec", "+ "+us(ways[1].all.p50()-bare),
		"p99 "+ms(ways[1].all.p99())+", of the exec "+ms(ways[0].all.p99()))
	return b.listener(ctx, box.ID)
}

// listener measures the time from a call to a listener that sees its approval request.
func (b *bench) listener(ctx context.Context, box string) error {
	heard := make(chan v1.Approval, 16)
	watch, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { // the result is received below
		ended <- b.srv.client.Approvals.Watch(watch, func(e v1.ApprovalEvent) error {
			if e.Type == "asked" {
				heard <- e.Approval
			}
			return nil
		})
	}()
	defer func() {
		stop()
		<-ended
	}()
	r := v1.ToolCall{Profile: "phase2", Sandbox: box, Input: json.RawMessage(`{"command": "pip install nothing-at-all"}`)}
	var all samples
	for range b.n(50) {
		began := time.Now()
		answered := make(chan error, 1)
		go func() { // the result is received below
			got, err := b.srv.client.Tools.Call(ctx, "system.bash", r, client.CallOptions{})
			if err == nil && got.Ending != "approval_denied" {
				err = fmt.Errorf("a call that was denied ended %s", got.Ending)
			}
			answered <- err
		}()
		select {
		case q := <-heard:
			all = append(all, time.Since(began))
			if _, err := b.srv.client.Approvals.Answer(ctx, q.ID, v1.ApprovalAnswer{Action: "deny"}); err != nil {
				return err
			}
		case err := <-answered:
			return fmt.Errorf("the call requested no approval: %w", err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := <-answered; err != nil {
			return err
		}
	}
	b.figure("an approval reaches a listener, from the call, slowest of "+fmt.Sprint(len(all)), "50 ms", ms(all.max()),
		"p50 "+ms(all.p50()), all.max() <= listenTarget)
	return nil
}
