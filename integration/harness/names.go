package harness

import (
	"net"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// Names runs a DNS server on loopback until the test ends and returns its address. Every name below
// ".test" resolves to 127.0.0.1; others do not exist.
func Names(tb testing.TB) string {
	tb.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		tb.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // the cleanup waits for it
		defer close(ended)
		buf := make([]byte, 1500)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if answer := nameAnswer(buf[:n]); answer != nil {
				_, _ = c.WriteToUDPAddrPort(answer, from) // the client retries on loss
			}
		}
	}()
	tb.Cleanup(func() { c.Close(); <-ended })
	return c.LocalAddr().String()
}

// nameAnswer returns the answer to a DNS query, or nil if the query is invalid.
func nameAnswer(question []byte) []byte {
	var p dnsmessage.Parser
	head, err := p.Start(question)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	m := dnsmessage.Message{
		Header: dnsmessage.Header{ID: head.ID, Response: true, Authoritative: true}, Questions: []dnsmessage.Question{q},
	}
	const domain = ".test."
	name := q.Name.String()
	switch {
	case len(name) < len(domain) || name[len(name)-len(domain):] != domain:
		m.RCode = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeA:
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: 1},
			Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
		}}
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}
