package config

import (
	"fmt"
	"slices"
	"strings"
)

// TLS configures encryption of a TCP listener. Changed files are read again.
type TLS struct {
	// CertFile has the certificate and its intermediates, and KeyFile its private key, in PEM. Both
	// or none is set.
	CertFile string `json:"cert_file"`
	KeyFile  string `json:"key_file"`
	// ClientCAFile has the authorities of client certificates, in PEM (default: clients are not
	// asked for certificates).
	ClientCAFile string `json:"client_ca_file"`
	// ClientAuth is "optional" or "required": whether a client needs a certificate to connect.
	ClientAuth string `json:"client_auth"`
	// Clients maps certificates to callers. The first entry that matches applies.
	Clients []TLSClient `json:"clients"`
}

// TLSClient gives the holders of client certificates the rights of a caller.
type TLSClient struct {
	// Name is what a certificate must contain: "dns:NAME", "uri:URI" or "email:ADDRESS" as a subject
	// alternative name, or "cn:NAME" as the common name of its subject.
	Name string `json:"name"`
	// Caller owns what the client creates. Profile is its profile (default: profiles.default).
	Caller  string `json:"caller"`
	Profile string `json:"profile"`
	// Trust is from 0 to 3. Operator clients may do everything.
	Trust    int  `json:"trust"`
	Operator bool `json:"operator"`
}

func defaultTLS() TLS { return TLS{ClientAuth: "optional", Clients: []TLSClient{}} }

// maxTrust is the greatest trust of a caller: see package tool.
const maxTrust = 3

func (t TLS) validate(listen string) error {
	network, _ := SplitListen(listen)
	for _, f := range []struct{ key, path string }{
		{"tls.cert_file", t.CertFile}, {"tls.key_file", t.KeyFile}, {"tls.client_ca_file", t.ClientCAFile},
	} {
		switch {
		case f.path == "":
		case !isAbsolute(f.path):
			return bad(f.key, f.path, "must be an absolute path")
		case network == "unix":
			return bad(f.key, f.path, "needs a TCP address in listen, which is "+listen)
		}
	}
	switch {
	case t.CertFile != "" && t.KeyFile == "":
		return bad("tls.key_file", "empty", "must be set, because tls.cert_file is")
	case t.CertFile == "" && t.KeyFile != "":
		return bad("tls.cert_file", "empty", "must be set, because tls.key_file is")
	case t.ClientCAFile != "" && t.CertFile == "":
		return bad("tls.client_ca_file", t.ClientCAFile, "needs tls.cert_file, which is empty")
	case !slices.Contains([]string{"optional", "required"}, t.ClientAuth):
		return bad("tls.client_auth", quoted(t.ClientAuth), "must be optional or required")
	case t.ClientAuth == "required" && t.ClientCAFile == "":
		return bad("tls.client_auth", t.ClientAuth, "needs tls.client_ca_file, which is empty")
	case len(t.Clients) > 0 && t.ClientCAFile == "":
		return bad("tls.clients", "set", "needs tls.client_ca_file, which is empty")
	}
	for i, c := range t.Clients {
		if err := c.validate(fmt.Sprintf("tls.clients[%d]", i)); err != nil {
			return err
		}
	}
	return nil
}

func (c TLSClient) validate(at string) error {
	kind, name, _ := strings.Cut(c.Name, ":")
	switch {
	case !slices.Contains([]string{"dns", "uri", "email", "cn"}, kind) || name == "":
		return bad(at+".name", quoted(c.Name), "must be dns:NAME, uri:URI, email:ADDRESS or cn:NAME")
	case !names.MatchString(c.Caller):
		return bad(at+".caller", quoted(c.Caller), namesText)
	case c.Caller == "local":
		return bad(at+".caller", c.Caller, "must be another name: this one is reserved for the service's own socket and token")
	case c.Profile != "" && !names.MatchString(c.Profile):
		return bad(at+".profile", quoted(c.Profile), namesText)
	case c.Trust < 0 || c.Trust > maxTrust:
		return bad(at+".trust", c.Trust, "must be from 0 to 3")
	}
	return nil
}
