package runtimetest

import (
	"encoding/json"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
)

// networkReport is what network.py reports.
type networkReport struct {
	Sockets       [][3]int             `json:"sockets"` // family, kind, protocol
	Pairs         []int                `json:"pairs"`
	OtherTables   map[string]any       `json:"other_tables"`
	Interfaces    []string             `json:"interfaces"`
	SysInterfaces []string             `json:"sys_interfaces"`
	Routes        []string             `json:"routes"`
	Reached       map[string][2]string `json:"reached"`
	Abstract      string               `json:"abstract"`
	Listed        bool                 `json:"listed"`
	Engine        map[string]string    `json:"engine"`
	Resolved      string               `json:"resolved"`
	Loopback      string               `json:"loopback"`
}

// checkNetworkNone checks that only address families that stay inside can be opened, by any system
// call table, and that nothing on the host can be reached. The host listens on all its addresses
// and must receive nothing.
func checkNetworkNone(t *testing.T, s *suite) {
	t.Helper()
	ear := listenOnHost(t)
	targets, err := json.Marshal(ear.targets)
	if err != nil {
		t.Fatal(err)
	}
	var got networkReport
	s.plain.runProgram(t, &got, "network", string(targets), ear.abstract)
	for _, o := range got.Sockets {
		if !staysInside(o[0], o[1], o[2]) {
			t.Errorf("socket(%d, %d, %d) succeeded, want error", o[0], o[1], o[2])
		}
	}
	if !slices.ContainsFunc(got.Sockets, func(o [3]int) bool { return o[0] == unix.AF_UNIX }) {
		t.Error("no Unix socket can be opened, want one: the check proves nothing")
	}
	if !slices.Equal(got.Pairs, []int{unix.AF_UNIX}) {
		t.Errorf("socketpair families = %v, want AF_UNIX only", got.Pairs)
	}
	for how, said := range got.OtherTables {
		if s.hidesProcesses() {
			break // gVisor has a single system call table, in which 102 is getuid
		}
		if _, number := said.(float64); number {
			t.Errorf("%s returned a socket (%v), want error", how, said)
		}
	}
	if !slices.Equal(got.Interfaces, []string{"lo"}) || !slices.Equal(got.SysInterfaces, []string{"lo"}) &&
		!(s.hidesProcesses() && len(got.SysInterfaces) == 0) || len(got.Routes) > 0 {
		t.Errorf("interfaces %q, %q, routes by %q; want lo only", got.Interfaces, got.SysInterfaces, got.Routes)
	}
	for to, said := range got.Reached {
		// Sending a datagram to the sandbox's own loopback succeeds without a receiver.
		if said[0] == "ok" || said[1] == "ok" && !strings.HasPrefix(to, "127.") && !strings.HasPrefix(to, "::1 ") {
			t.Errorf("connect to %s: TCP %s, UDP %s; want errors, except for UDP to loopback", to, said[0], said[1])
		}
	}
	if got.Abstract == "ok" || got.Listed {
		t.Errorf("abstract socket of the host: connect %s, listed %v; want an error, false", got.Abstract, got.Listed)
	}
	for path, said := range got.Engine {
		if said == "ok" {
			t.Errorf("connect to %s = %s, want an error", path, said)
		}
	}
	if got.Resolved == "ok" {
		t.Error("a host name was resolved, want failure")
	}
	if got.Loopback != "ok" {
		t.Errorf("loopback inside = %s, want ok", got.Loopback)
	}
	if n := ear.heard.Load(); n > 0 {
		t.Errorf("host received %d connections or datagrams, want 0", n)
	}
	checkNeighbours(t, s)
}

// checkNeighbours checks that commands of the same user in two sandboxes cannot find each other.
func checkNeighbours(t *testing.T, s *suite) {
	t.Helper()
	offer := s.newSandbox(t, nil).startCommand(t, python("neighbour", "offer", "4711", "neighbour-mark"), guest.IO{})
	offer.waitOutput(t, "ready")
	var own, other map[string]string
	if err := json.NewDecoder(strings.NewReader(offer.out.String())).Decode(&own); err != nil {
		t.Fatalf("decode %q: %v", offer.out.String(), err)
	}
	s.plain.runProgram(t, &other, "neighbour", "look", "4711")
	for what, said := range other {
		if said == "ok" {
			t.Errorf("%s of another sandbox is reachable, want an error", what)
		}
		if own[what] != "ok" && what != "process" && what != "port of version 6" {
			t.Errorf("%s of the same sandbox: %s, want ok: the check proves nothing", what, own[what])
		}
	}
}

// staysInside reports whether a socket cannot reach anything outside a network namespace that has
// only lo.
func staysInside(family, kind, protocol int) bool {
	switch family {
	case unix.AF_UNIX:
		return true
	case unix.AF_INET, unix.AF_INET6:
		return (kind == unix.SOCK_STREAM || kind == unix.SOCK_DGRAM) &&
			(protocol == 0 || protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_UDP)
	case unix.AF_NETLINK:
		return protocol == unix.NETLINK_ROUTE
	}
	return false
}

// hostListener listens on the host wherever a sandbox might reach it.
type hostListener struct {
	targets  [][3]any // family, host, port
	abstract string
	heard    atomic.Int64
}

// listenOnHost listens on one TCP and one UDP port of all addresses, and on an abstract Unix
// socket, until the test ends.
func listenOnHost(t *testing.T) *hostListener {
	t.Helper()
	e := &hostListener{abstract: "orchestrator-suite-" + randomName()}
	tcp, udp, err := samePort()
	for range 10 { // a port that is free for TCP may be taken for UDP
		if err == nil {
			break
		}
		tcp, udp, err = samePort()
	}
	if err != nil {
		t.Fatal(err)
	}
	port := tcp.Addr().(*net.TCPAddr).Port
	local, err := net.Listen("unix", "@"+e.abstract)
	if err != nil {
		tcp.Close()
		udp.Close()
		t.Fatal(err)
	}
	accept := func(l net.Listener) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			e.heard.Add(1)
			c.Close()
		}
	}
	read := func() {
		b := make([]byte, 64)
		for {
			if n, _, err := udp.ReadFrom(b); err != nil {
				return
			} else if strings.HasPrefix(string(b[:n]), "from inside") {
				e.heard.Add(1)
			}
		}
	}
	done := make(chan struct{}, 3)
	for _, f := range []func(){func() { accept(tcp) }, func() { accept(local) }, read} {
		go func() { f(); done <- struct{}{} }()
	}
	t.Cleanup(func() {
		tcp.Close()
		udp.Close()
		local.Close()
		for range 3 {
			<-done
		}
	})
	e.addTargets(t, port)
	return e
}

// samePort listens on one port for both TCP and UDP.
func samePort() (net.Listener, *net.UDPConn, error) {
	tcp, err := net.Listen("tcp", ":0")
	if err != nil {
		return nil, nil, err
	}
	udp, err := net.ListenUDP("udp", &net.UDPAddr{Port: tcp.Addr().(*net.TCPAddr).Port})
	if err != nil {
		tcp.Close()
		return nil, nil, err
	}
	return tcp, udp, nil
}

// addTargets adds the host's addresses and some public ones to the targets, and checks that the
// listener hears connections.
func (e *hostListener) addTargets(t *testing.T, port int) {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || n.IP.IsLinkLocalUnicast() {
			continue
		}
		family := unix.AF_INET6
		if n.IP.To4() != nil {
			family = unix.AF_INET
		}
		e.targets = append(e.targets, [3]any{family, n.IP.String(), port})
	}
	e.targets = append(e.targets,
		[3]any{unix.AF_INET, "1.1.1.1", 53}, [3]any{unix.AF_INET, "169.254.169.254", 80},
		[3]any{unix.AF_INET, "224.0.0.1", 5353},
		[3]any{unix.AF_INET, "172.17.0.1", 2375}, [3]any{unix.AF_INET6, "2606:4700:4700::1111", 53},
		[3]any{unix.AF_INET6, "ff02::1", 5353},
	)
	// Check that the listener works: otherwise the test would prove nothing.
	c, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Patience)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	for end := time.Now().Add(Patience); e.heard.Load() == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("listener got no connection of the host, want one")
		}
	}
	e.heard.Store(0)
}
