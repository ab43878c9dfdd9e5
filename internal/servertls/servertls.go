// Package servertls keeps the TLS configuration of a listener up to date with its files.
//
// A [Source] reads a certificate, its key and optionally the certificate authorities of clients. It
// reads them again when they change. Files that cannot be used are an [Error], and the earlier
// certificate stays in use. The package starts no goroutines and does not decide who a client is.
package servertls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
)

// Interval is how often Run checks the files. Changed files must stay the same for one interval
// before they are read: certificate and key are replaced one after the other.
const Interval = time.Second

// maxFile bounds each file, in bytes.
const maxFile = 1 << 20

// Files are the paths of a listener's files, in PEM.
type Files struct {
	// Cert has the certificate, followed by its intermediate certificates. Key is its private key,
	// which other users must not be able to read.
	Cert, Key string
	// ClientCA has the certificate authorities of clients. If it is "", no client is asked for a
	// certificate.
	ClientCA string
	// RequireClient refuses clients without a valid certificate. It needs ClientCA.
	RequireClient bool
}

// Error says which file cannot be used, and why. It is of class FailedPrecondition.
type Error struct {
	Key    string // the configuration key of the file, such as "tls.cert_file"
	Path   string
	Detail string
	Err    error // the cause, or nil
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("%s %s: %s", e.Key, e.Path, e.Detail) }

// Unwrap returns the class and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{errdefs.ErrFailedPrecondition}
	}
	return []error{errdefs.ErrFailedPrecondition, e.Err}
}

// Source has the current configuration of a listener. Its methods may be called concurrently.
type Source struct {
	files   Files
	now     func() time.Time
	current atomic.Pointer[loaded]
	// replaced is called after other authorities are in use. It may be nil.
	replaced func()
}

// loaded is what the files contained.
type loaded struct {
	config *tls.Config
	leaf   *x509.Certificate
	// print and authorities are the text of all files, and of the authorities' file.
	print, authorities string
	// roots are the authorities in DER.
	roots map[string]bool
	// stamp is that of the files before they were read, so that no later change goes unnoticed.
	stamp string
}

// Open reads the files. replaced, if set, is called whenever other authorities of clients were put
// into use: connections of certificates that only the earlier ones accept must end.
func Open(f Files, replaced func()) (*Source, error) {
	s := &Source{files: f, now: time.Now, replaced: replaced}
	l, err := s.load()
	if err != nil {
		return nil, err
	}
	s.current.Store(l)
	return s, nil
}

// Config returns a configuration for a listener. Each handshake uses the files as last read.
func (s *Source) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return s.current.Load().config, nil
		},
	}
}

// Expires returns when the current certificate expires.
func (s *Source) Expires() time.Time { return s.current.Load().leaf.NotAfter }

// Reload reads the files, and reports whether the certificate or the authorities changed. After an
// error the earlier ones stay in use.
func (s *Source) Reload() (bool, error) {
	l, err := s.load()
	if err != nil {
		return false, err
	}
	before := s.current.Swap(l)
	if before.authorities != l.authorities && s.replaced != nil {
		s.replaced()
	}
	return before.print != l.print, nil
}

// Trusts reports whether the current authorities issued a chain that a handshake verified, maybe
// with earlier authorities.
func (s *Source) Trusts(chains [][]*x509.Certificate) bool {
	roots := s.current.Load().roots
	return slices.ContainsFunc(chains, func(chain []*x509.Certificate) bool {
		return len(chain) > 0 && roots[string(chain[len(chain)-1].Raw)]
	})
}

// Check reads the files, and says whether Reload could use them.
func (s *Source) Check() error {
	_, err := s.load()
	return err
}

// Run reloads changed files until ctx ends. It logs what it does, and each problem once.
func (s *Source) Run(ctx context.Context, log *slog.Logger) {
	t := time.NewTicker(Interval)
	defer t.Stop()
	read := s.current.Load().stamp
	for seen := read; ; {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		was := seen
		if seen = s.stamp(); seen == read || seen != was {
			continue
		}
		read = seen
		switch changed, err := s.Reload(); {
		case err != nil:
			log.Warn("failed to reload TLS files; keeping the earlier certificate", "error", err, "expires", s.Expires())
		case changed:
			log.Info("reloaded TLS files", "expires", s.Expires())
		}
	}
}

// load reads and checks the files.
func (s *Source) load() (*loaded, error) {
	stamp := s.stamp()
	cert, err := read("tls.cert_file", s.files.Cert, 0)
	if err != nil {
		return nil, err
	}
	key, err := read("tls.key_file", s.files.Key, 0o007)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, &Error{"tls.cert_file", s.files.Cert, fmt.Sprintf(
			"cannot be used with tls.key_file %s: %s", s.files.Key, strings.TrimPrefix(err.Error(), "tls: ")), err}
	}
	if now := s.now(); now.After(pair.Leaf.NotAfter) || now.Before(pair.Leaf.NotBefore) {
		return nil, &Error{"tls.cert_file", s.files.Cert, fmt.Sprintf(
			"is valid from %s to %s, and it is %s: renew it", timeText(pair.Leaf.NotBefore), timeText(pair.Leaf.NotAfter), timeText(now)), nil}
	}
	c := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{pair},
		// One request at a time for each connection: the service counts connections per caller.
		NextProtos: []string{"http/1.1"},
		// A resumed session would keep the authorities of its first handshake.
		SessionTicketsDisabled: true,
	}
	l := &loaded{config: c, leaf: pair.Leaf, print: string(cert) + "\x00" + string(key), stamp: stamp}
	if s.files.ClientCA == "" {
		return l, nil
	}
	authorities, err := read("tls.client_ca_file", s.files.ClientCA, 0)
	if err != nil {
		return nil, err
	}
	c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.VerifyClientCertIfGiven
	l.roots = map[string]bool{}
	for block, rest := pem.Decode(authorities); block != nil; block, rest = pem.Decode(rest) {
		root, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, &Error{"tls.client_ca_file", s.files.ClientCA, "has a block that is not a certificate", err}
		}
		c.ClientCAs.AddCert(root)
		l.roots[string(root.Raw)] = true
	}
	if len(l.roots) == 0 {
		return nil, &Error{"tls.client_ca_file", s.files.ClientCA, "has no certificate in PEM", nil}
	}
	if s.files.RequireClient {
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	l.authorities = string(authorities)
	l.print += "\x00" + l.authorities
	return l, nil
}

func timeText(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// read returns the content of a regular file whose mode has no bit of forbidden.
func read(key, path string, forbidden fs.FileMode) ([]byte, error) {
	bad := func(detail string, err error) error { return &Error{key, path, detail, err} }
	// Opening a FIFO must not wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, bad("does not exist", err)
	}
	if err != nil {
		return nil, bad("cannot be read: "+errors.Unwrap(err).Error(), err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, bad("cannot be read", err)
	case !info.Mode().IsRegular() || info.Size() > maxFile:
		return nil, bad("is not a regular file of at most 1 MiB", nil)
	case info.Mode()&forbidden != 0:
		return nil, bad(fmt.Sprintf("has mode %04o: other users can access it; chmod 640 it", info.Mode().Perm()), nil)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, bad("cannot be read", err)
	}
	return text, nil
}

// stamp changes when one of the files is replaced or written.
func (s *Source) stamp() string {
	var b strings.Builder
	for _, path := range []string{s.files.Cert, s.files.Key, s.files.ClientCA} {
		if info, err := os.Stat(path); err == nil {
			inode := uint64(0)
			if sys, ok := info.Sys().(*syscall.Stat_t); ok {
				inode = sys.Ino
			}
			fmt.Fprintf(&b, "%d\x00%d\x00%d\x00%d", inode, info.Size(), info.Mode(), info.ModTime().UnixNano())
		}
		b.WriteByte('\n')
	}
	return b.String()
}
