package netpolicy

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// Limits of credentials.
const (
	MaxSecrets     = 64
	maxSecretValue = 16 << 10
	maxSecretHosts = 64
)

// Secret is a credential that the gateway sets as a request header, replacing the sandbox's. Its
// value never appears in output of fmt, JSON or slog.
type Secret struct {
	// Name consists of lower-case letters, digits, "-" and "_".
	Name string `json:"name"`
	// Hosts are names, or all names below one ("*.example.com"); not "*".
	Hosts []string `json:"hosts"`
	// Header is the header field, and Value its complete value ("Bearer abc").
	Header string `json:"header"`
	Value  string `json:"value"`
}

// String returns all fields except the value.
func (s Secret) String() string {
	return fmt.Sprintf("secret %s (%s for %s)", quoted(s.Name), quoted(s.Header), quoted(strings.Join(s.Hosts, " ")))
}

// GoString returns the same as String.
func (s Secret) GoString() string { return s.String() }

// Format makes every verb String, since %d and its like look into fields. It is
// not asked for %p, which go vet refuses.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue returns the same as String.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalJSON omits the value.
func (s Secret) MarshalJSON() ([]byte, error) { return marshalSecret(s) }

// For reports whether the credential is for a host, in canonical form. It returns false if
// CheckSecrets refuses the credential.
func (s Secret) For(host string) bool {
	for _, h := range s.Hosts {
		p, err := secretHost(h)
		if err == nil && matchesAny([]pattern{p}, host) {
			return CheckSecrets([]Secret{s}) == nil
		}
	}
	return false
}
