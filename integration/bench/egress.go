package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// Targets for egress.
const (
	gatewayTarget = time.Millisecond // added to the time without it
	relayTarget   = 0.7              // of a plain relay's throughput
	tunnels       = 500
	killTarget    = 100 * time.Millisecond
	heldTarget    = int64(64 << 10) // of the service, per tunnel
)

// proxy is the proxy address in sandboxes with egress rules.
var proxy = fmt.Sprintf("127.0.0.1:%d", wire.ProxyPort)

// outside runs servers on loopback: one answers requests, one sends bytes, one keeps connections
// open, and a plain relay forwards to the second.
type outside struct {
	web                 *http.Server
	pages, bytes, quiet net.Listener
	relay               net.Listener
	size                int64

	mu    sync.Mutex
	conns []net.Conn
	work  sync.WaitGroup
}

// newOutside starts the servers. The second one sends size bytes.
func newOutside(size int64) (*outside, error) {
	o := &outside{size: size}
	for _, l := range []*net.Listener{&o.pages, &o.bytes, &o.quiet, &o.relay} {
		var err error
		if *l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			o.close()
			return nil, err
		}
	}
	page := []byte("a page of a hundred bytes, more or less, such as an interface answers with when it has little to say\n")
	o.web = &http.Server{ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(page) })}
	o.work.Go(func() { _ = o.web.Serve(o.pages) })
	o.each(o.bytes, func(nc net.Conn) {
		buf := make([]byte, 256<<10)
		for left := o.size; left > 0; left -= int64(len(buf)) {
			if _, err := nc.Write(buf[:min(left, int64(len(buf)))]); err != nil {
				break
			}
		}
		nc.Close()
	})
	o.each(o.quiet, func(nc net.Conn) { _, _ = io.Copy(io.Discard, nc) })
	o.each(o.relay, func(nc net.Conn) {
		defer nc.Close()
		to, err := net.Dial("tcp", o.bytes.Addr().String())
		if err != nil {
			return
		}
		defer to.Close()
		_, _ = io.Copy(nc, to)
	})
	return o, nil
}

// each serves connections until close.
func (o *outside) each(l net.Listener, do func(net.Conn)) {
	o.work.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			o.mu.Lock()
			o.conns = append(o.conns, nc)
			o.mu.Unlock()
			o.work.Go(func() { do(nc) })
		}
	})
}

// close closes the servers and all connections, and waits for their goroutines.
func (o *outside) close() {
	if o.web != nil {
		o.web.Close()
	}
	for _, l := range []net.Listener{o.pages, o.bytes, o.quiet, o.relay} {
		if l != nil {
			l.Close()
		}
	}
	o.mu.Lock()
	for _, nc := range o.conns {
		nc.Close()
	}
	o.mu.Unlock()
	o.work.Wait()
}

// rules allows only these servers.
func (o *outside) rules() *v1.Egress {
	port := func(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }
	return &v1.Egress{Rules: []v1.EgressRule{
		{Host: "127.0.0.1", Protocol: "http", Ports: []int{port(o.pages)}},
		{Host: "127.0.0.1", Protocol: "tcp", Ports: []int{port(o.bytes), port(o.quiet)}},
	}}
}

// egress compares requests through the gateway with direct ones.
func (b *bench) egress(ctx context.Context) error {
	size := int64(2 << 30)
	if b.short {
		size /= 10
	}
	o, err := newOutside(size)
	if err != nil {
		return err
	}
	defer o.close()
	if err := b.srv.configure("oci", b.engine.host, 0, 4); err != nil {
		return err
	}
	if _, err := b.srv.start(ctx); err != nil {
		return err
	}
	s, err := b.srv.client.CreateSandbox(ctx, v1.SandboxRequest{Template: "wide", WhenEmpty: "cold", Egress: o.rules()})
	if err != nil {
		return err
	}
	f, err := os.Open(b.inside)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := b.srv.client.SandboxFiles(s.ID).Write(ctx, "inside", f, client.WriteOptions{Mode: "0755"}); err != nil {
		return err
	}
	for _, m := range []struct {
		what string
		do   func(context.Context, *outside, string) error
	}{
		{"requests through the gateway", b.requests},
		{"bytes through the gateway", b.carried},
		{"tunnels at once", b.held},
	} {
		b.say("  " + m.what)
		if err := m.do(ctx, o, s.ID); err != nil {
			b.fail(m.what, err)
		}
	}
	return b.srv.client.RemoveSandbox(ctx, s.ID)
}

// here runs the helper on the host; there runs it in the sandbox.
func (b *bench) here(ctx context.Context, into any, args ...string) error {
	out, err := exec.CommandContext(ctx, b.inside, args...).Output()
	if err != nil {
		return err
	}
	return json.Unmarshal(out, into)
}

// there runs the helper in a sandbox and decodes its output.
func (b *bench) there(ctx context.Context, id string, into any, args ...string) error {
	r, err := b.srv.client.Exec(ctx, id, v1.Exec{Argv: append([]string{"./inside"}, args...), MaxOutputBytes: 1 << 20})
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(r.Stdout), into); err != nil {
		return fmt.Errorf("the helper ended %s %d: %.300s", r.Ending, r.ExitCode, r.Stderr)
	}
	return nil
}

// requests compares the time of requests.
func (b *bench) requests(ctx context.Context, o *outside, id string) error {
	n, target := fmt.Sprint(b.n(500)), "http://"+o.pages.Addr().String()+"/"
	var direct, through samples
	for range 4 {
		var one samples
		if err := b.here(ctx, &one, "get", n, target); err != nil {
			return err
		}
		direct = append(direct, one...)
		if err := b.there(ctx, id, &one, "get", n, target, proxy); err != nil {
			return err
		}
		through = append(through, one...)
	}
	more := through.p50() - direct.p50()
	b.figure("request of plain HTTP from a sandbox to a server on loopback, p50", "direct + 1.0 ms", ms(through.p50()),
		fmt.Sprintf("direct from the host %s, so + %s (p99: direct %s, through %s)",
			ms(direct.p50()), ms(more), ms(direct.p99()), ms(through.p99())), more <= gatewayTarget)
	return nil
}

// carried compares the throughput of a tunnel with that of a plain relay.
func (b *bench) carried(ctx context.Context, o *outside, id string) error {
	var ours, plain float64
	for range 3 {
		var one [2]int64
		if err := b.here(ctx, &one, "pull", o.relay.Addr().String()); err != nil {
			return err
		}
		plain = max(plain, float64(one[0])/1e6/time.Duration(one[1]).Seconds())
		if err := b.there(ctx, id, &one, "pull", o.bytes.Addr().String(), proxy); err != nil {
			return err
		}
		if one[0] != o.size {
			return fmt.Errorf("got %d bytes, want %d", one[0], o.size)
		}
		ours = max(ours, float64(one[0])/1e6/time.Duration(one[1]).Seconds())
	}
	b.figure("bytes through CONNECT, best of 3", "70 % of a plain relay's", fmt.Sprintf("%.0f MB/s", ours),
		fmt.Sprintf("relay on the host %.0f MB/s: %.0f %%", plain, 100*ours/plain), ours >= relayTarget*plain)
	return nil
}

// held keeps many tunnels open and kills a command in the meantime.
func (b *bench) held(ctx context.Context, o *outside, id string) error {
	before, err := memoryOf(b.srv.pid())
	if err != nil {
		return err
	}
	hold := v1.Exec{Argv: []string{"./inside", "hold", fmt.Sprint(tunnels), o.quiet.Addr().String(), proxy}}
	sh, err := b.srv.client.StartShell(ctx, id, v1.ShellRequest{Exec: hold, KeepOpen: true})
	if err != nil {
		return err
	}
	err = b.srv.poll(ctx, "the tunnels are there", pollTime, func() (bool, error) {
		state, err := b.srv.client.Egress.Get(ctx, id)
		return state.Open >= tunnels, err
	})
	if err != nil {
		return err
	}
	full, err := memoryOf(b.srv.pid())
	if err != nil {
		return err
	}
	kills, err := timed(b.n(30), func(int) error {
		victim, err := b.srv.client.StartShell(ctx, id, v1.ShellRequest{Exec: v1.Exec{Argv: []string{"sleep", "600"}}})
		if err != nil {
			return err
		}
		_, err = b.srv.client.KillShell(ctx, victim.ID, 0, false)
		return err
	})
	if err != nil {
		return err
	}
	each := (full.rss - before.rss) / tunnels
	b.figure(fmt.Sprintf("start and kill of a command beside %d tunnels of its sandbox, slowest", tunnels),
		"100 ms", ms(kills.max()), "p50 "+ms(kills.p50()), kills.max() <= killTarget)
	b.figure(fmt.Sprintf("resident, service, for each of %d tunnels", tunnels), "64 KiB",
		fmt.Sprintf("%.1f KiB", float64(each)/1024), "before "+mb(before.rss)+", with them "+mb(full.rss), each <= heldTarget)
	_, err = b.srv.client.KillShell(ctx, sh.ID, 0, false)
	return err
}
