package sandbox

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func TestEgressRulesAreReadAndWritten(t *testing.T) {
	for text, want := range map[string]v1.EgressRule{
		"pypi.org":                        {Host: "pypi.org"},
		"tls://pypi.org:8443":             {Host: "pypi.org", Protocol: "tls", Ports: []int{8443}},
		"http://deb.debian.org/debian/*":  {Host: "deb.debian.org", Protocol: "http", Paths: []string{"/debian/*"}},
		"GET,HEAD https://a.example/v1/x": {Host: "a.example", Protocol: "https", Methods: []string{"GET", "HEAD"}, Paths: []string{"/v1/x"}},
		"tcp://db.internal:5432,5433":     {Host: "db.internal", Protocol: "tcp", Ports: []int{5432, 5433}},
		"!*.evil.example":                 {Host: "*.evil.example", Deny: true},
		"!http://a.example":               {Host: "a.example", Protocol: "http", Deny: true},
		"tcp://10.0.0.0/8:22":             {Host: "10.0.0.0", Protocol: "tcp", Paths: []string{"/8:22"}}, // refused by the server
		"10.0.0.0/8":                      {Host: "10.0.0.0/8"},
		"2001:db8::1":                     {Host: "2001:db8::1"},
		"tcp://[2001:db8::1]:22":          {Host: "2001:db8::1", Protocol: "tcp", Ports: []int{22}},
		"*":                               {Host: "*"},
	} {
		got, err := egressRule(text)
		if err != nil {
			t.Errorf("egressRule(%q) = %v, want no error", text, err)
			continue
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", text, d)
		}
		if back := egressText(got); back != text {
			t.Errorf("egressText(%+v) = %s, want %s", got, back, text)
		}
	}
	for _, bad := range []string{"", "!", "tls://", "tls://:443", "a.example:", "a.example:x", "a.example:70000", "http:///x"} {
		if r, err := egressRule(bad); err == nil {
			t.Errorf("egressRule(%q) = %+v, want an error", bad, r)
		}
	}
}
