package netpolicy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/textproto"
	"strings"
)

// CheckSecrets looks at each field. An error is an *InvalidError that names it
// ("egress.secrets[1].header"), and shows no value.
func CheckSecrets(secrets []Secret) error {
	if len(secrets) > MaxSecrets {
		return invalid("egress.secrets", "are %d: %d is the most", len(secrets), MaxSecrets)
	}
	names := map[string]bool{}
	for i, s := range secrets {
		field := fmt.Sprintf("egress.secrets[%d]", i)
		if err := checkSecret(field, &s); err != nil {
			return err
		}
		if names[s.Name] {
			return invalid(field+".name", "is %q, as that of another one", s.Name)
		}
		names[s.Name] = true
	}
	return nil
}

func checkSecret(field string, s *Secret) error {
	if !isSecretName(s.Name) {
		return invalid(field+".name", "is %s: it is 1 to 64 lower-case letters, digits, - and _", quoted(s.Name))
	}
	if n := len(s.Hosts); n == 0 || n > maxSecretHosts {
		return invalid(field+".hosts", "are %d: 1 to %d hosts are the only ones that get the credential", n, maxSecretHosts)
	}
	for i, h := range s.Hosts {
		if _, err := secretHost(h); err != nil {
			return invalid(fmt.Sprintf("%s.hosts[%d]", field, i), "%v", err)
		}
	}
	if !isToken(s.Header) || !settable(s.Header) {
		return invalid(field+".header", "is %s: it is the name of a header field that is not part of the connection, as Authorization", quoted(s.Header))
	}
	return checkValue(field+".value", s.Value)
}

func secretHost(s string) (pattern, error) {
	p, err := parsePattern(s)
	switch {
	case err != nil:
		return p, err
	case p.kind == every:
		return p, errors.New(`is "*": name the hosts, for each one that gets a credential can keep it`)
	case p.kind == network:
		return p, errors.New("is a range: name the hosts")
	}
	return p, nil
}

// settable: fields that say where a message ends, whom it is for, or what is
// done on the way belong to the gateway.
func settable(header string) bool {
	switch h := textproto.CanonicalMIMEHeaderKey(header); h {
	case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Te", "Trailer", "Upgrade", "Expect", "Http2-Settings":
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
		return invalid(field, "begins or ends with white space")
	}
	for i := 0; i < len(v); i++ {
		if v[i] < ' ' && v[i] != '\t' || v[i] == 0x7f {
			return invalid(field, "has line ends or control characters")
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
