// Package testtls makes certificates for tests, and writes them to files.
package testtls

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority issues certificates. Make one with New.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate in files.
type Pair struct{ Cert, Key string }

// New returns an authority that writes to a temporary directory.
func New(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{dir: tb.TempDir()}
	a.cert, a.key = a.sign(tb, &x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	})
	writePEM(tb, a.File(), "CERTIFICATE", a.cert.Raw)
	return a
}

// File returns the path of the authority's certificate.
func (a *Authority) File() string { return filepath.Join(a.dir, "ca.pem") }

// Issue writes a certificate to the directory, as name.pem and name-key.pem. Without names in
// template it is for localhost and 127.0.0.1. It is valid for a day, unless template says
// otherwise.
func (a *Authority) Issue(tb testing.TB, name string, template x509.Certificate) Pair {
	tb.Helper()
	if len(template.DNSNames)+len(template.URIs)+len(template.EmailAddresses) == 0 && template.Subject.CommonName == "" {
		template.DNSNames, template.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	cert, key := a.sign(tb, &template)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	p := Pair{filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+"-key.pem")}
	writePEM(tb, p.Key, "PRIVATE KEY", der)
	writePEM(tb, p.Cert, "CERTIFICATE", cert.Raw)
	return p
}

// sign signs template with the authority's key, or with the new one if the authority has none.
func (a *Authority) sign(tb testing.TB, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		tb.Fatal(err)
	}
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return cert, key
}

// writePEM replaces a file at once, as tools that renew certificates do.
func writePEM(tb testing.TB, path, kind string, der []byte) {
	tb.Helper()
	if err := os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		tb.Fatal(err)
	}
}
