package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"

	"github.com/containerd/errdefs"
)

// TLSFiles are the files of a client for a server that listens with TLS, in PEM. The zero value
// trusts the authorities of this host and has no certificate.
type TLSFiles struct {
	// CA has the certificate authorities to trust instead of those of this host.
	CA string
	// Cert and Key are the client's certificate and its private key. Both or none is set.
	Cert, Key string
}

// Config reads the files. It returns nil for the zero value. Errors name the file and are of class
// InvalidArgument.
func (f TLSFiles) Config() (*tls.Config, error) {
	if f == (TLSFiles{}) {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		text, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("certificate authorities: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("certificate authorities: %s has no certificate in PEM: %w", f.CA, errdefs.ErrInvalidArgument)
		}
	}
	switch {
	case f.Cert == "" && f.Key == "":
		return c, nil
	case f.Cert == "" || f.Key == "":
		return nil, fmt.Errorf("client certificate: certificate and key are needed together: %w", errdefs.ErrInvalidArgument)
	}
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("client certificate %s: %w: %w", f.Cert, err, errdefs.ErrInvalidArgument)
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}

// TLSError means that client and server did not agree on an encrypted connection, because one does
// not accept the certificate of the other, or because one uses TLS and the other does not. No
// request was sent. It is of class Unauthenticated.
type TLSError struct {
	Address string
	// Remote says that the server refused the client's certificate, or the lack of one.
	Remote bool
	Err    error
}

// Error implements error.
func (e *TLSError) Error() string {
	if e.Remote {
		return fmt.Sprintf("the server at %s does not accept this client's certificate, or needs one: %v", e.Address, e.Err)
	}
	return fmt.Sprintf("no trusted connection to %s: %v", e.Address, e.Err)
}

// Unwrap returns the class and the cause.
func (e *TLSError) Unwrap() []error { return []error{errdefs.ErrUnauthenticated, e.Err} }

// tlsError returns a TLSError if the handshake failed, and otherwise nil.
func tlsError(address string, err error) error {
	// This is how crypto/tls reports an alert of the server.
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		return &TLSError{Address: address, Remote: true, Err: err}
	}
	_, verify := errors.AsType[*tls.CertificateVerificationError](err)
	if verify || errors.Is(err, http.ErrSchemeMismatch) {
		return &TLSError{Address: address, Err: err}
	}
	return nil
}
