package runtimetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// connectionCount is the number of concurrent proxy connections. A mux gets fewer, because the
// bridge buffers what commands do not read.
const (
	connectionCount    = 500
	muxConnectionCount = 120
)

// egressView is what egress.py reports about a sandbox.
type egressView struct {
	Proxy       string   `json:"proxy"`
	Interfaces  []string `json:"interfaces"`
	Resolved    string   `json:"resolved"`
	Env         string   `json:"env"`
	Placeholder string   `json:"placeholder"`
}

// checkConnections checks that the host can reach servers in the sandbox and receives commands'
// proxy connections, over the host's streams alone. The sandbox must have no interface but loopback
// throughout.
func checkConnections(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, func(spec *runtime.Spec) { spec.Limits.OpenFiles = runtime.DefaultOpenFiles })
	checkDial(t, b)
	closed := egressView{Proxy: "ECONNREFUSED", Interfaces: []string{"lo"}, Resolved: "no"}
	b.checkEgressView(t, closed)
	checkEgress(t, b)
	b.setEgress(t, wire.Egress{})
	b.checkEgressView(t, closed)
	checkGuestProgram(t, b)
}

func (b *box) setEgress(t *testing.T, e wire.Egress) {
	t.Helper()
	if err := b.Egress(t.Context(), e); err != nil {
		t.Fatalf("set egress (on: %v): %v", e.On, err)
	}
}

func (b *box) checkEgressView(t *testing.T, want egressView) {
	t.Helper()
	var got egressView
	b.runProgram(t, &got, "egress", "look", "0")
	if !slices.Equal(got.Interfaces, want.Interfaces) {
		t.Errorf("interfaces = %q, want %q", got.Interfaces, want.Interfaces)
	}
	if got.Interfaces = want.Interfaces; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("egress view = %+v, want %+v", got, want)
	}
}

// checkDial checks that a server on either loopback address answers, and that each direction can be
// closed separately if the stream supports it.
func checkDial(t *testing.T, b *box) {
	t.Helper()
	const port = 4710
	server := b.startCommand(t, python("egress", "listen", strconv.Itoa(port)), guest.IO{})
	server.waitOutput(t, "\n")
	ports := []int{port}
	if strings.Contains(server.out.String(), "6") {
		ports = append(ports, port+1)
	}
	for _, p := range ports {
		nc, err := b.Dial(t.Context(), p)
		if err != nil {
			t.Fatalf("dial port %d: %v", p, err)
		}
		checkEcho(t, nc)
	}
	if _, err := b.Dial(t.Context(), port+2); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "4712") {
		t.Errorf("dial unused port: %v, want NotFound naming the port", err)
	}
	server.cancel(nil)
}

func checkEcho(t *testing.T, nc net.Conn) {
	t.Helper()
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(Patience))
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	half, ok := nc.(interface{ CloseWrite() error })
	if !ok {
		t.Fatal("the connection has no CloseWrite, want one")
	}
	sent := make(chan error, 1)
	go func() {
		_, err := nc.Write(want)
		if err == nil {
			err = half.CloseWrite()
		}
		sent <- err
	}()
	got := make([]byte, len(want))
	_, err := io.ReadFull(nc, got)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("echo differs from what was sent: %v; want the same %d bytes and no error", err, len(want))
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(nc); err != nil || string(rest) != "end" {
		t.Errorf("after CloseWrite: read %q, %v; want %q", rest, err, "end")
	}
}

// checkEgress checks that the proxy listens only while it is enabled and that the host accepts its
// connections.
func checkEgress(t *testing.T, b *box) {
	t.Helper()
	thief := b.startCommand(t, python("egress", "take", "0"), guest.IO{})
	thief.waitOutput(t, "ready")
	if err := b.Egress(t.Context(), wire.Egress{On: true}); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "3128") {
		t.Errorf("enable egress while a command uses the port: %v, want FailedPrecondition naming it", err)
	}
	thief.cancel(nil)
	<-thief.ended
	if _, err := b.Accept(t.Context()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("accept while egress is off: %v, want FailedPrecondition", err)
	}
	b.setEgress(t, wire.Egress{On: true, Env: map[string]string{"TOKEN": "placeholder"}})
	b.checkEgressView(t, egressView{Proxy: "ok", Interfaces: []string{"lo"}, Resolved: "no", Env: "http://127.0.0.1:3128",
		Placeholder: "placeholder"})
	b.checkProxyRoundTrip(t)
	checkManyConnections(t, b)
}

// checkProxyRoundTrip checks that a command can send "hello" to the proxy, close its direction and
// read the host's answer. It skips earlier connections whose command has ended: they carry no data.
func (b *box) checkProxyRoundTrip(t *testing.T) {
	t.Helper()
	hello := b.startCommand(t, python("egress", "say", "0"), guest.IO{})
	for {
		nc, err := b.Accept(t.Context())
		if err != nil {
			t.Fatalf("accept: %v", err)
		}
		nc.SetDeadline(time.Now().Add(Patience))
		said, err := io.ReadAll(nc)
		if err != nil {
			t.Fatal(err)
		}
		if len(said) > 0 {
			_, err = fmt.Fprintf(nc, "you said %s", said)
		}
		nc.Close()
		if err != nil {
			t.Fatal(err)
		}
		if len(said) > 0 {
			break
		}
	}
	if o := hello.waitResult(t); !o.exited(0) || o.stdout != "you said hello\n" {
		t.Errorf("through the proxy: %v, want %q", o, "you said hello\n")
	}
}

// checkManyConnections checks that with many open connections the guest still answers and kills,
// and uses hardly more memory.
func checkManyConnections(t *testing.T, b *box) {
	t.Helper()
	before := b.mustPing(t).RSSBytes
	connections := connectionCount
	if nc, err := b.Open(t.Context()); err != nil {
		t.Fatal(err)
	} else if _, local := nc.(*net.UnixConn); nc.Close() == nil && !local {
		connections = muxConnectionCount
	}
	holder := b.startCommand(t, python("egress", "hold", strconv.Itoa(connections)), guest.IO{})
	held := acceptMany(t, b, connections)
	defer func() {
		for _, nc := range held {
			nc.Close()
		}
	}()
	if len(held) < connections {
		t.Fatalf("accepted %d connections, want %d", len(held), connections)
	}
	holder.waitOutput(t, "ready")
	for _, nc := range held { // fill the buffers
		nc.SetWriteDeadline(time.Now().Add(Patience))
		if _, err := nc.Write(make([]byte, 1<<10)); err != nil {
			t.Fatal(err)
		}
	}
	pong := b.mustPing(t)
	began := time.Now()
	holder.cancel(nil)
	<-holder.ended
	killed := time.Since(began)
	t.Logf("%d connections: guest RSS %d KiB, %d more than before; kill took %s", connections, pong.RSSBytes>>10,
		(pong.RSSBytes-before)>>10, killed.Round(time.Millisecond))
	if pong.RSSBytes-before > runtime.GuestReserveBytes/2 {
		t.Errorf("guest RSS grew by %d bytes, want at most %d", pong.RSSBytes-before, runtime.GuestReserveBytes/2)
	}
	if killed > Patience/2 {
		t.Errorf("kill took %s, want at most %s", killed, Patience/2)
	}
}

// acceptMany accepts n connections of the sandbox's proxy, eight at a time, for at most Patience.
func acceptMany(t *testing.T, b *box, n int) []net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	var mu sync.Mutex
	var held []net.Conn
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for ctx.Err() == nil {
				nc, err := b.Accept(ctx)
				if err != nil {
					return
				}
				mu.Lock()
				held = append(held, nc)
				if len(held) == n {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return held
}

// checkGuestProgram checks that a program of the guest runs like any command, as the command user,
// and that commands cannot start it by path.
func checkGuestProgram(t *testing.T, b *box) {
	t.Helper()
	stdin, request := io.Pipe()
	defer request.Close()
	pid := make(chan int, 1)
	web := b.startCommand(t, wire.Command{Program: "web"},
		guest.IO{Stdin: stdin, Started: func(s wire.Started) { pid <- s.Pid }})
	select {
	case n := <-pid:
		if got := b.mustOutput(t,
			fmt.Sprintf("awk '/^Uid/ {print $2}' /proc/%d/status", n)); got != strconv.Itoa(runtime.CommandUID) {
			t.Errorf("program runs as uid %q, want %d", got, runtime.CommandUID)
		}
	case <-web.ended:
		t.Fatalf("program ended: %v, want it started", web.err)
	}
	if _, err := io.WriteString(request, "{}"); err != nil {
		t.Fatal(err)
	}
	request.Close()
	if o := web.waitResult(t); !o.exited(0) || !strings.Contains(o.stdout, `"fault"`) {
		t.Errorf("empty request: %v, want a fault", o)
	}
	for name, cmd := range map[string]wire.Command{"program": {Program: "sh", Argv: []string{"-c", "id"}},
		"argv": {Argv: []string{wire.ProgramPath(wire.GuestPath, "web")}}} {
		if o, err := b.Exec(t.Context(), cmd, guest.IO{}); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%v: %v, %v; want an error on %s", cmd, o, err, name)
		}
	}
}
