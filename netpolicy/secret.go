package netpolicy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/textproto"
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

// Format writes the same as String for every verb, because %d and others would print fields. fmt
// does not call it for %p, which go vet refuses.
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

// CheckSecrets validates secrets. An error is an *InvalidError that names the field
// ("egress.secrets[1].header"). It contains no value.
func CheckSecrets(secrets []Secret) error {
	if len(secrets) > MaxSecrets {
		return invalid("egress.secrets", "has %d entries: the maximum is %d", len(secrets), MaxSecrets)
	}
	names := map[string]bool{}
	for i, s := range secrets {
		field := fmt.Sprintf("egress.secrets[%d]", i)
		if err := checkSecret(field, &s); err != nil {
			return err
		}
		if names[s.Name] {
			return invalid(field+".name", "is %q, which another secret has: use another name", s.Name)
		}
		names[s.Name] = true
	}
	return nil
}

func checkSecret(field string, s *Secret) error {
	if !isSecretName(s.Name) {
		return invalid(field+".name", "is %s: use 1 to 64 lower-case letters, digits, - and _", quoted(s.Name))
	}
	if n := len(s.Hosts); n == 0 || n > maxSecretHosts {
		return invalid(field+".hosts", "has %d entries: list the 1 to %d hosts that get the credential", n, maxSecretHosts)
	}
	for i, h := range s.Hosts {
		if _, err := secretHost(h); err != nil {
			return invalid(fmt.Sprintf("%s.hosts[%d]", field, i), "%v", err)
		}
	}
	if !isToken(s.Header) || !isSettableHeader(s.Header) {
		return invalid(field+".header",
			"is %s: use a header field that does not control the connection, such as Authorization", quoted(s.Header))
	}
	return checkValue(field+".value", s.Value)
}

func secretHost(s string) (pattern, error) {
	p, err := parsePattern(s)
	switch {
	case err != nil:
		return p, err
	case p.kind == anyName:
		return p, errors.New(`is "*": name the hosts, because each host that gets a credential can keep it`)
	case p.kind == addressRange:
		return p, errors.New("is an address range: name the hosts")
	}
	return p, nil
}

// isSettableHeader reports whether a credential may set a header field. Fields about message
// length, destination and the connection are reserved for the gateway.
func isSettableHeader(header string) bool {
	switch h := textproto.CanonicalMIMEHeaderKey(header); h {
	case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Te", "Trailer", "Upgrade", "Expect",
		"Http2-Settings":
		return false
	default:
		return !strings.HasPrefix(h, "Proxy-")
	}
}

func checkValue(field, v string) error {
	switch {
	case v == "":
		return invalid(field, "is empty")
	case len(v) > maxSecretValue:
		return invalid(field, "is longer than %d bytes", maxSecretValue)
	case strings.TrimSpace(v) != v:
		return invalid(field, "starts or ends with white space")
	}
	for i := 0; i < len(v); i++ {
		if v[i] < ' ' && v[i] != '\t' || v[i] == 0x7f {
			return invalid(field, "contains line breaks or control characters")
		}
	}
	return nil
}

func isSecretName(s string) bool {
	return s != "" && len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_-") == ""
}

func marshalSecret(s Secret) ([]byte, error) {
	return json.Marshal(struct {
		Name   string   `json:"name"`
		Hosts  []string `json:"hosts"`
		Header string   `json:"header"`
	}{s.Name, s.Hosts, s.Header})
}
