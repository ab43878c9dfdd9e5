package caller

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// CertificatePrefix is the prefix of Principal.Token if a client certificate identified the caller.
// The name that matched follows it.
const CertificatePrefix = "cert:"

// Certificate gives the holders of client certificates the rights of a caller.
type Certificate struct {
	// Name is what a certificate must contain: "dns:NAME", "uri:URI" or "email:ADDRESS" as a subject
	// alternative name, or "cn:NAME" as the common name of its subject.
	Name string
	// Caller, Profile, Trust and Operator are as in Principal.
	Caller   string
	Profile  string
	Trust    int
	Operator bool
}

// CheckCertificates returns an error about the first entry that cannot be used.
func (s *Service) CheckCertificates(list []Certificate) error {
	for i, c := range list {
		if err := s.checkToken(v1.TokenRequest{Caller: c.Caller, Profile: c.Profile, Trust: c.Trust}); err != nil {
			return fmt.Errorf("tls.clients[%d]: %w", i, err)
		}
	}
	return nil
}

// SetCertificates replaces the entries for client certificates, which CheckCertificates has passed.
// An entry that is missing in list has no rights any more.
func (s *Service) SetCertificates(list []Certificate) {
	list = slices.Clone(list)
	s.certificates.Store(&list)
}

// IdentifyCertificate returns the caller of a client certificate, which the listener has verified.
// The first entry that matches decides. It reports false if none does, or if the certificate has
// expired since its connection began.
func (s *Service) IdentifyCertificate(leaf *x509.Certificate) (Principal, bool) {
	if !s.Now().Before(leaf.NotAfter) {
		return Principal{}, false
	}
	for _, c := range s.certificateEntries() {
		if c.matches(leaf) {
			return Principal{
				Caller: c.Caller, Token: CertificatePrefix + c.Name, Profile: c.Profile, Trust: c.Trust,
				Operator: c.Operator, Expires: leaf.NotAfter,
			}, true
		}
	}
	return Principal{}, false
}

func (s *Service) certificateEntries() []Certificate {
	if list := s.certificates.Load(); list != nil {
		return *list
	}
	return nil
}

// validCertificate reports whether an entry with this name exists.
func (s *Service) validCertificate(name string) bool {
	return slices.ContainsFunc(s.certificateEntries(), func(c Certificate) bool { return c.Name == name })
}

func (c Certificate) matches(leaf *x509.Certificate) bool {
	kind, name, _ := strings.Cut(c.Name, ":")
	switch kind {
	case "dns":
		return slices.ContainsFunc(leaf.DNSNames, func(s string) bool { return strings.EqualFold(s, name) })
	case "email":
		return slices.Contains(leaf.EmailAddresses, name)
	case "uri":
		for _, u := range leaf.URIs {
			if u.String() == name {
				return true
			}
		}
	case "cn":
		return name != "" && leaf.Subject.CommonName == name
	}
	return false
}
