//go:build integration

package scenarios

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv/testtls"
)

// encrypted is a server that listens on TCP with TLS.
type encrypted struct {
	*harness.Server
	authority              *testtls.Authority
	config, token, address string
}

// startTLS starts a server whose certificate is named server in the authority's directory.
func startTLS(t *testing.T) *encrypted {
	t.Helper()
	e := &encrypted{Server: harness.New(t, harness.Options{Runtime: "oci", Seed: &seed}), authority: testtls.New(t)}
	p := e.authority.Issue(t, "server", x509.Certificate{})
	dir := harness.TempDir(t)
	e.token = filepath.Join(dir, "token")
	harness.WriteFile(t, e.token, strings.Repeat("0123456789abcdef", 2))
	text, err := os.ReadFile(e.Config())
	if err != nil {
		t.Fatal(err)
	}
	e.config = filepath.Join(dir, "config.yaml")
	harness.WriteFile(t, e.config, regexp.MustCompile(`(?m)^listen: .*`).ReplaceAllString(string(text),
		"listen: '127.0.0.1:0'\ntoken_file: "+e.token+"\ntls:\n  cert_file: "+p.Cert+"\n  key_file: "+p.Key+
			"\n  client_ca_file: "+e.authority.File()+"\n  clients: [{name: 'cn:ci', caller: ci, trust: 3}]"))
	e.With("--config", e.config)
	e.Begin()
	t.Cleanup(e.Term) // before the harness looks at what is left
	listening := regexp.MustCompile(`listening on (\S+),`)
	harness.Eventually(t, harness.Long, "the server listens", func() bool {
		if m := listening.FindStringSubmatch(e.Log()); m != nil {
			e.address = m[1]
		}
		return e.address != ""
	})
	return e
}

// client returns a client with a certificate of the common name, or with the service's token.
func (e *encrypted) client(t *testing.T, name string) *client.Client {
	t.Helper()
	files, o := client.TLSFiles{CA: e.authority.File()}, client.Options{Address: e.address}
	if name == "" {
		text, err := os.ReadFile(e.token)
		if err != nil {
			t.Fatal(err)
		}
		o.Token = string(text)
	} else {
		p := e.authority.Issue(t, name, x509.Certificate{Subject: pkix.Name{CommonName: name}})
		files.Cert, files.Key = p.Cert, p.Key
	}
	var err error
	if o.TLS, err = files.Config(); err != nil {
		t.Fatal(err)
	}
	cl, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func TestTLS(t *testing.T) {
	e := startTLS(t)
	ci := e.client(t, "ci")
	r, err := ci.Run(within(t), v1.Run{Exec: v1.Exec{Command: "echo hello"}})
	if err != nil || r.Stdout != "hello\n" {
		t.Fatalf("run with a client certificate = %+v, %v; want hello", r, err)
	}
	if _, err := ci.Tokens.List(within(t)); !errdefs.IsPermissionDenied(err) {
		t.Errorf("token list with the certificate of a caller = %v, want PermissionDenied", err)
	}
	if _, err := e.client(t, "other").Templates.List(within(t)); !errdefs.IsUnauthorized(err) {
		t.Errorf("request with a certificate without an entry = %v, want Unauthenticated", err)
	}
	if _, err := e.client(t, "").Tokens.List(within(t)); err != nil {
		t.Errorf("token list with the service's token = %v, want nil", err)
	}
	t.Run("tunnel", func(t *testing.T) { tunnelOverTLS(t, ci) })
	t.Run("command line", func(t *testing.T) { commandLineOverTLS(t, e) })
	t.Run("reload", func(t *testing.T) { reloadOfCertificate(t, e, ci) })
}

// tunnelOverTLS uses a connection that the service takes over from net/http.
func tunnelOverTLS(t *testing.T, cl *client.Client) {
	t.Helper()
	sb, err := cl.CreateSandbox(within(t), v1.SandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	term, err := cl.OpenTerminal(within(t), sb.ID,
		v1.TerminalRequest{Argv: []string{"echo", "over TLS"}}, client.TerminalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	var out strings.Builder
	buf := make([]byte, 1024)
	for err == nil {
		var n int
		n, err = term.Read(buf)
		out.Write(buf[:n])
	}
	if !strings.Contains(out.String(), "over TLS") {
		t.Errorf("terminal wrote %q, want over TLS", out.String())
	}
}

func commandLineOverTLS(t *testing.T, e *encrypted) {
	t.Helper()
	empty := filepath.Join(t.TempDir(), "empty.yaml")
	harness.WriteFile(t, empty, "")
	common := []string{"--config", empty, "--address", "https://" + e.address}
	p := e.authority.Issue(t, "cli", x509.Certificate{Subject: pkix.Name{CommonName: "ci"}})
	for _, c := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"certificate", []string{"--ca-file", e.authority.File(), "--cert-file", p.Cert, "--key-file", p.Key}, 0, "42"},
		{"token", []string{"--ca-file", e.authority.File(), "--token-file", e.token}, 0, "42"},
		{"no authority", []string{"--token-file", e.token}, 77, "name the authority of its certificate with --ca-file"},
		{"nothing", []string{"--ca-file", e.authority.File()}, 77, "a bearer token is required"},
		{"no key", []string{"--cert-file", p.Cert}, 64, "certificate and key are needed together"},
	} {
		got := e.CLI(t, append(append(common, c.args...), "run", "-c", "echo $((6*7))")...)
		if got.Code != c.code || !strings.Contains(got.Stdout+got.Stderr, c.want) {
			t.Errorf("%s: run = code %d, %s%s; want code %d and %q", c.name, got.Code, got.Stdout, got.Stderr, c.code, c.want)
		}
	}
}

// reloadOfCertificate replaces the certificate while callers run commands over new connections.
func reloadOfCertificate(t *testing.T, e *encrypted, cl *client.Client) {
	t.Helper()
	var work sync.WaitGroup
	var stop atomic.Bool
	for range 4 {
		work.Go(func() {
			for !stop.Load() {
				if _, err := cl.Version(within(t)); err != nil {
					t.Errorf("request during the reload = %v, want nil", err)
				}
				cl.Close() // the next request makes a new connection
			}
		})
	}
	past := time.Now().Add(-time.Hour)
	e.authority.Issue(t, "server", x509.Certificate{NotBefore: past.Add(-time.Hour), NotAfter: past})
	logged := func(text string) func() bool { return func() bool { return strings.Contains(e.Log(), text) } }
	harness.Eventually(t, harness.Short, "the bad certificate is reported", logged("keeping the earlier certificate"))
	e.authority.Issue(t, "server", x509.Certificate{})
	harness.Eventually(t, harness.Short, "the certificate is reloaded", logged("reloaded TLS files"))
	stop.Store(true)
	work.Wait()
}
