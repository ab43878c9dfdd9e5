package netpolicy

import (
	"net/netip"
	"strings"
	"testing"
)

func TestGuardRefusesNonPublicAddresses(t *testing.T) {
	var g Guard
	for _, s := range strings.Fields(`
		0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 100.100.100.200 127.0.0.1 127.255.255.254
		169.254.0.1 169.254.169.254 168.63.129.16 172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.1
		198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
		:: ::1 ::7f00:1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1
		64:ff9b::7f00:1 64:ff9b::8.8.8.8 64:ff9b:1::1 100::1 2001::1 2001:0:5ef5:79fd::1 2001:10::1 2001:20::1 2001:db8::1
		2002:7f00:1:: 2002:808:808::1 3fff::1 5f00::1 fc00::1 fd00:ec2::254 fd20:ce::254 fe80::1 febf::1 fec0::1 ff02::1 4000::1 1000::1`) {
		if err := g.Check("a.com", netip.MustParseAddr(s)); err == nil || !strings.Contains(err.Error(), "egress.private") {
			t.Errorf("Check(a.com, %s) = %v, want an error that names egress.private", s, err)
		}
	}
	for _, s := range strings.Fields(`1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255
		100.128.0.0 126.255.255.255 128.0.0.1 169.253.255.255 172.15.0.1 172.32.0.1
		192.0.1.1 198.17.0.1 198.20.0.1 223.255.255.255 ::ffff:8.8.8.8 2001:4860:4860::8888 2606:4700::1111 2a00::1 2003::1`) {
		if err := g.Check("a.com", netip.MustParseAddr(s)); err != nil {
			t.Error(err)
		}
	}
	for _, a := range []netip.Addr{{}, netip.MustParseAddr("2a00::1%eth0")} {
		if g.Check("a.com", a) == nil {
			t.Errorf("Check(a.com, %v) = nil, want an error", a)
		}
	}
}

func TestGuardExceptions(t *testing.T) {
	ranges := func(texts ...string) (all []netip.Prefix) {
		for _, s := range texts {
			all = append(all, netip.MustParsePrefix(s))
		}
		return all
	}
	g, err := NewGuard([]Private{
		{Hosts: []string{"DB.internal.", "*.svc"}, Ranges: ranges("10.1.0.0/16", "169.254.0.0/16", "::1/128")},
		{Hosts: []string{"meta.internal"}, Ranges: ranges("169.254.169.254/32", "64:ff9b::/96")},
		{Hosts: []string{"v6only.net"}, Ranges: ranges("64:ff9b::/96", "::ffff:10.2.0.0/112")},
		{Hosts: []string{"10.3.0.1"}, Ranges: ranges("10.0.0.0/8")},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		host, addr string
		ok         bool
	}{
		{"db.internal", "10.1.2.3", true}, {"db.internal", "::ffff:10.1.2.3", true}, {"a.b.svc", "10.1.2.3", true},
		{"db.internal", "::1", true}, {"db.internal", "169.254.1.1", true},
		{"db.internal", "10.2.0.1", false}, {"svc", "10.1.2.3", false}, {"other", "10.1.2.3", false},
		{"db.internal", "169.254.169.254", false}, {"db.internal", "127.0.0.1", false},
		{"meta.internal", "169.254.169.254", true}, {"meta.internal", "169.254.169.253", false},
		{"meta.internal", "64:ff9b::a9fe:a9fe", false},
		{"v6only.net", "64:ff9b::8.8.8.8", true}, {"v6only.net", "64:ff9b::10.2.0.1", true},
		{"v6only.net", "64:ff9b::10.3.0.1", false}, {"v6only.net", "64:ff9b::a9fe:a9fe", false},
		{"10.3.0.1", "10.3.0.1", true}, {"10.3.0.2", "10.3.0.2", false},
	} {
		if err := g.Check(c.host, netip.MustParseAddr(c.addr)); (err == nil) != c.ok {
			t.Errorf("Check(%s, %s) = %v, want success %v", c.host, c.addr, err, c.ok)
		}
	}
	for field, p := range map[string]Private{
		"hosts ":     {Ranges: ranges("10.0.0.0/8")},
		"hosts[0] ":  {Hosts: []string{"*"}, Ranges: ranges("10.0.0.0/8")},
		"hosts[1] ":  {Hosts: []string{"a", "a:1"}, Ranges: ranges("10.0.0.0/8")},
		"ranges ":    {Hosts: []string{"a"}},
		"ranges[0] ": {Hosts: []string{"a"}, Ranges: ranges("10.1.0.0/8")},
		"ranges[1] ": {Hosts: []string{"a"}, Ranges: append(ranges("10.0.0.0/8"), netip.Prefix{})},
	} {
		if _, err := NewGuard([]Private{p}); err == nil || !strings.HasPrefix(err.Error(), "egress.private[0]."+field) {
			t.Errorf("NewGuard(%+v) = %v, want an error about egress.private[0].%s", p, err, field)
		}
	}
}
