package netpolicy

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer is a DNS server on loopback. Each IPv4 query takes the next answer for its name. The
// last answer repeats.
type nameServer struct {
	at string
	mu sync.Mutex
	a  map[string][][]string
}

func newNameServer(t *testing.T, a map[string][][]string) *nameServer {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{at: pc.LocalAddr().String(), a: a}
	var done sync.WaitGroup
	done.Go(func() {
		b := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(b)
			if err != nil {
				return
			}
			if answer := s.answer(b[:n]); answer != nil {
				pc.WriteTo(answer, from)
			}
		}
	})
	t.Cleanup(func() { pc.Close(); done.Wait() })
	return s
}

func (s *nameServer) answer(ask []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	var m dnsmessage.Message
	if m.Unpack(ask) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	name := strings.TrimSuffix(q.Name.String(), ".")
	all, ok := s.a[name]
	if !ok {
		m.RCode = dnsmessage.RCodeNameError
	}
	if ok && q.Type == dnsmessage.TypeA {
		if len(all) > 1 {
			s.a[name] = all[1:]
		}
		for _, one := range all[0] {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 0},
				Body:   &dnsmessage.AResource{A: netip.MustParseAddr(one).As4()},
			})
		}
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}

func TestEachConnectionIsResolvedAndChecked(t *testing.T) {
	t.Parallel()
	port := echo(t)
	dead, err := net.ListenPacket("udp", "127.0.0.1:0") // receives queries and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	dns := newNameServer(t, map[string][][]string{
		"rebind.test": {{"127.0.0.1"}, {"127.0.0.2"}, {"169.254.169.254"}},
		"mixed.test":  {{"127.0.0.2", "10.0.0.1", "127.0.0.1"}},
		"none.test":   {{}},
	})
	resolver, err := NewResolver([]string{dead.LocalAddr().String(), dns.at})
	if err != nil {
		t.Fatal(err)
	}
	one := []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	w := newWorld(t, Options{Resolver: resolver, Private: []Private{{Hosts: []string{"*.test"}, Ranges: one}}},
		SessionOptions{},
		Rule{Host: "*.test", Protocol: TCP, Ports: []int{port}})
	for i, c := range []struct{ host, says string }{
		{"rebind.test", ""},
		{"rebind.test", "127.0.0.2, a loopback address"},
		{"rebind.test", "metadata"},
		{"mixed.test", ""},
		{"none.test", "has no address"},
		{"gone.test", "has no address"},
	} {
		nc, err := w.connect(target(c.host, port))
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%d %s: %v, want %q", i, c.host, err, c.says)
		}
		if err == nil {
			nc.Close()
		}
		if line := w.audited(i + 1); c.says == "" && line.Address != target("127.0.0.1", port) {
			t.Errorf("%d %s: audited %+v, want the address 127.0.0.1 and port %d", i, c.host, line, port)
		}
	}
	for _, bad := range []string{"dns.example", "1.2.3.4:0", ""} {
		_, err := NewResolver([]string{"192.0.2.1", bad})
		wantText(t, bad, fmt.Sprint(err), "egress.resolver[1]")
	}
}

// TestOwnAddressesAreRefused checks that sandboxes cannot reach this machine's public addresses,
// which a firewall may hide from others. The machine may have none, so the test sets the list.
func TestOwnAddressesAreRefused(t *testing.T) {
	w := newWorld(t, Options{Resolver: answers{"me.example": {netip.MustParseAddr("8.8.4.4")}}}, SessionOptions{},
		Rule{Host: "me.example"})
	if err := w.g.checkAddress("a.test", loopback[0]); err != nil {
		t.Fatal(err) // the list is filled now
	}
	w.g.mu.Lock()
	w.g.own[netip.MustParseAddr("8.8.4.4")] = true
	w.g.mu.Unlock()
	_, err := w.connect("me.example:443")
	wantText(t, "answer", fmt.Sprint(err), "an address of this machine")
}
