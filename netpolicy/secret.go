package netpolicy

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// Bounds of credentials.
const (
	MaxSecrets     = 64
	maxSecretValue = 16 << 10
	maxSecretHosts = 64
)

// Secret is a credential that the gateway sets as a header on requests to hosts,
// in place of whatever came from inside. No form of output shows its value: not
// fmt, not JSON, not slog.
type Secret struct {
	// Name is lower-case letters, digits, "-" and "_".
	Name string `json:"name"`
	// Hosts are names, or all names below one ("*.example.com"); not "*".
	Hosts []string `json:"hosts"`
	// Header is the field that is set; Value is all of it ("Bearer abc").
	Header string `json:"header"`
	Value  string `json:"value"`
}

// String shows everything but the value.
func (s Secret) String() string {
	return fmt.Sprintf("secret %s (%s for %s)", quoted(s.Name), quoted(s.Header), quoted(strings.Join(s.Hosts, " ")))
}

// GoString is String: %#v shows no more than that.
func (s Secret) GoString() string { return s.String() }

// Format makes every verb String, since %d and its like look into fields. It is
// not asked for %p, which go vet refuses.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue is String.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalJSON leaves the value out.
func (s Secret) MarshalJSON() ([]byte, error) { return marshalSecret(s) }

// For says whether the credential is for a host, in its canonical form. One that
// CheckSecrets refuses is for none.
func (s Secret) For(host string) bool {
	for _, h := range s.Hosts {
		p, err := secretHost(h)
		if err == nil && matchesAny([]pattern{p}, host) {
			return CheckSecrets([]Secret{s}) == nil
		}
	}
	return false
}
