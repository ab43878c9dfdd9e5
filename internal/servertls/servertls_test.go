package servertls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"

	"github.com/sandbox-orchestrator/orchestrator/internal/testenv/testtls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve accepts connections with the configuration of s, and completes their handshakes.
func serve(t *testing.T, s *Source) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", s.Config())
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		work.Wait()
	})
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(10 * time.Second))
				if c.(*tls.Conn).HandshakeContext(context.Background()) == nil {
					_, _ = io.WriteString(c, "hello")
				}
			})
		}
	})
	return l.Addr().String()
}

// dial makes a handshake and reads the greeting, with which a server confirms a client certificate.
func dial(address string, c *tls.Config) (tls.ConnectionState, error) {
	conn, err := (&tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: c}).Dial("tcp", address)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	_, err = io.ReadAll(conn)
	return conn.(*tls.Conn).ConnectionState(), err
}

func trusting(t *testing.T, a *testtls.Authority) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(a.File())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return &tls.Config{RootCAs: pool, ServerName: "localhost"}
}

func open(t *testing.T, f Files) *Source {
	t.Helper()
	s, err := Open(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestHandshakeVersions(t *testing.T) {
	a := testtls.New(t)
	p := a.Issue(t, "server", x509.Certificate{})
	address := serve(t, open(t, Files{Cert: p.Cert, Key: p.Key}))
	for _, c := range []struct {
		name         string
		most, agreed uint16
	}{{"newest", 0, tls.VersionTLS13}, {"1.2", tls.VersionTLS12, tls.VersionTLS12}, {"1.1", tls.VersionTLS11, 0}} {
		config := trusting(t, a)
		config.MinVersion, config.MaxVersion = tls.VersionTLS10, c.most
		state, err := dial(address, config)
		if state.Version != c.agreed || (err == nil) != (c.agreed != 0) {
			t.Errorf("dial(%s) = %s, %v; want %s", c.name, tls.VersionName(state.Version), err, tls.VersionName(c.agreed))
		}
	}
	if _, err := dial(address, trusting(t, testtls.New(t))); err == nil {
		t.Error("dial with another authority succeeded, want an error")
	}
}

func TestClientCertificates(t *testing.T) {
	a, other := testtls.New(t), testtls.New(t)
	p := a.Issue(t, "server", x509.Certificate{})
	good := a.Issue(t, "client", x509.Certificate{Subject: pkix.Name{CommonName: "ci"}})
	past := time.Now().Add(-time.Hour)
	old := a.Issue(t, "old", x509.Certificate{
		Subject: pkix.Name{CommonName: "ci"}, NotBefore: past.Add(-time.Hour), NotAfter: past})
	stranger := other.Issue(t, "client", x509.Certificate{Subject: pkix.Name{CommonName: "ci"}})
	files := Files{Cert: p.Cert, Key: p.Key, ClientCA: a.File()}
	optional := serve(t, open(t, files))
	files.RequireClient = true
	required := serve(t, open(t, files))
	for _, c := range []struct {
		name               string
		pair               testtls.Pair
		optional, required bool
	}{
		{"none", testtls.Pair{}, true, false}, {"valid", good, true, true}, {"expired", old, false, false},
		{"of another authority", stranger, false, false},
	} {
		config := trusting(t, a)
		if c.pair.Cert != "" {
			pair, err := tls.LoadX509KeyPair(c.pair.Cert, c.pair.Key)
			if err != nil {
				t.Fatal(err)
			}
			// Send it even if the server did not name its authority.
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		if _, err := dial(optional, config); (err == nil) != c.optional {
			t.Errorf("optional: dial with certificate %s = %v, want success %v", c.name, err, c.optional)
		}
		if _, err := dial(required, config); (err == nil) != c.required {
			t.Errorf("required: dial with certificate %s = %v, want success %v", c.name, err, c.required)
		}
	}
}

func TestOpenErrorsNameTheFile(t *testing.T) {
	a := testtls.New(t)
	good, other := a.Issue(t, "good", x509.Certificate{}), a.Issue(t, "other", x509.Certificate{})
	past := time.Now().Add(-time.Hour)
	old := a.Issue(t, "old", x509.Certificate{NotBefore: past.Add(-time.Hour), NotAfter: past})
	soon := a.Issue(t, "soon", x509.Certificate{NotBefore: time.Now().Add(time.Hour), NotAfter: time.Now().Add(2 * time.Hour)})
	open := a.Issue(t, "open", x509.Certificate{})
	if err := os.Chmod(open.Key, 0o644); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		files     Files
		key, want string
	}{
		{"no certificate", Files{Cert: "/nowhere.pem", Key: good.Key}, "tls.cert_file", "/nowhere.pem: does not exist"},
		{"no key", Files{Cert: good.Cert, Key: "/nowhere.pem"}, "tls.key_file", "does not exist"},
		{"a directory", Files{Cert: t.TempDir(), Key: good.Key}, "tls.cert_file", "is not a regular file"},
		{"key of another", Files{Cert: good.Cert, Key: other.Key}, "tls.cert_file", "cannot be used with tls.key_file " + other.Key},
		{"not PEM", Files{Cert: empty, Key: good.Key}, "tls.cert_file", "failed to find any PEM data"},
		{"expired", Files{Cert: old.Cert, Key: old.Key}, "tls.cert_file", "renew it"},
		{"not valid yet", Files{Cert: soon.Cert, Key: soon.Key}, "tls.cert_file", "is valid from"},
		{"open key", Files{Cert: open.Cert, Key: open.Key}, "tls.key_file", "has mode 0644"},
		{"empty authorities", Files{Cert: good.Cert, Key: good.Key, ClientCA: empty}, "tls.client_ca_file", "no certificate in PEM"},
	} {
		_, err := Open(c.files, nil)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Key != c.key || !strings.Contains(err.Error(), c.want) || !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: Open = %v, want FailedPrecondition of %s with %q", c.name, err, c.key, c.want)
		}
	}
}

// A reload that fails keeps the certificate, and a later one that succeeds replaces it.
func TestReload(t *testing.T) {
	a := testtls.New(t)
	p := a.Issue(t, "server", x509.Certificate{})
	s := open(t, Files{Cert: p.Cert, Key: p.Key})
	address := serve(t, s)
	serial := func() string {
		state, err := dial(address, trusting(t, a))
		if err != nil {
			t.Fatal(err)
		}
		return state.PeerCertificates[0].SerialNumber.String()
	}
	first := serial()
	if changed, err := s.Reload(); changed || err != nil {
		t.Errorf("Reload of the same files = %v, %v; want false, nil", changed, err)
	}
	past := time.Now().Add(-time.Hour)
	a.Issue(t, "server", x509.Certificate{NotBefore: past.Add(-time.Hour), NotAfter: past})
	if _, err := s.Reload(); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Reload of an expired certificate = %v, want FailedPrecondition", err)
	}
	if got := serial(); got != first {
		t.Errorf("serial number after a bad reload = %s, want %s as before", got, first)
	}
	a.Issue(t, "server", x509.Certificate{})
	if changed, err := s.Reload(); !changed || err != nil {
		t.Errorf("Reload of a new certificate = %v, %v; want true, nil", changed, err)
	}
	if got := serial(); got == first {
		t.Error("serial number after a reload is the earlier one, want the new one")
	}
}

// Run replaces the certificate while clients connect, and none of them fails.
func TestRunReloadsUnderLoad(t *testing.T) {
	a := testtls.New(t)
	p := a.Issue(t, "server", x509.Certificate{})
	s := open(t, Files{Cert: p.Cert, Key: p.Key})
	address, client := serve(t, s), trusting(t, a)
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { s.Run(ctx, slog.New(slog.DiscardHandler)) })
	var serials sync.Map
	var count, failed atomic.Int64
	for range 4 {
		work.Go(func() {
			for ctx.Err() == nil {
				state, err := dial(address, client)
				if err != nil {
					failed.Add(1)
					continue
				}
				count.Add(1)
				serials.Store(state.PeerCertificates[0].SerialNumber.String(), true)
			}
		})
	}
	time.AfterFunc(30*time.Second, cancel)
	a.Issue(t, "server", x509.Certificate{})
	for n := 0; n < 2 && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		n = 0
		serials.Range(func(any, any) bool { n++; return true })
	}
	if ctx.Err() != nil {
		t.Error("no client saw the new certificate within 30 s")
	}
	cancel()
	work.Wait()
	if failed.Load() != 0 {
		t.Errorf("%d of %d connections failed during the reload, want none", failed.Load(), count.Load())
	}
}

// A change between Open and Run is noticed, too.
func TestRunReloadsWhatChangedBefore(t *testing.T) {
	a := testtls.New(t)
	p := a.Issue(t, "server", x509.Certificate{})
	s := open(t, Files{Cert: p.Cert, Key: p.Key})
	first := s.Expires()
	a.Issue(t, "server", x509.Certificate{NotBefore: time.Now().Add(-time.Hour), NotAfter: first.Add(time.Hour)})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var work sync.WaitGroup
	work.Go(func() { s.Run(ctx, slog.New(slog.DiscardHandler)) })
	for ctx.Err() == nil && s.Expires().Equal(first) {
		time.Sleep(10 * time.Millisecond)
	}
	if s.Expires().Equal(first) {
		t.Errorf("certificate in use expires at %s, want the one that replaced it", first)
	}
	cancel()
	work.Wait()
}
