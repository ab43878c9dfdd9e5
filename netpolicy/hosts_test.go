package netpolicy

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

type noNames struct{}

var errNoNames = errors.New("asked a name server")

func (noNames) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return nil, errNoNames
}

func TestHostsFileHasPriority(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	text := "# 192.0.2.1 commented.test\n192.0.2.2\tone.test One-Alias.test. # a comment\n2001:db8::2 " +
		"one.test\nfe80::1%eth0 zone.test\nnonsense broken.test\n192.0.2.3\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := hostsFirst{path: path, next: noNames{}}
	for name, want := range map[string][]string{
		"one.test.": {"192.0.2.2", "2001:db8::2"}, "one-alias.test.": {"192.0.2.2"},
		"commented.test.": nil, "zone.test.": nil, "broken.test.": nil, "test.": nil,
	} {
		got, err := r.LookupNetIP(t.Context(), "ip", name)
		var have []string
		for _, a := range got {
			have = append(have, a.String())
		}
		if !slices.Equal(have, want) || (len(want) == 0) != errors.Is(err, errNoNames) {
			t.Errorf("LookupNetIP(%s) = %v, %v; want %v, or errNoNames if that is empty", name, have, err, want)
		}
	}
	r.path += "-none"
	if _, err := r.LookupNetIP(t.Context(), "ip", "one.test."); !errors.Is(err, errNoNames) {
		t.Errorf("LookupNetIP without a file = %v, want errNoNames", err)
	}
}
