package api

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/servertls"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv/testtls"
)

const ownToken = "0123456789abcdef0123456789abcdef"

// encrypted is a server with TLS, its own token and client certificates.
type encrypted struct {
	*Server
	authority *testtls.Authority
	source    *servertls.Source
	address   string
}

func serveTLS(t *testing.T, required bool) *encrypted {
	t.Helper()
	a := testtls.New(t)
	p := a.Issue(t, "server", x509.Certificate{})
	var s *Server
	source, err := servertls.Open(servertls.Files{
		Cert: p.Cert, Key: p.Key, ClientCA: a.File(), RequireClient: required,
	}, func() { s.EndCertificates() })
	if err != nil {
		t.Fatal(err)
	}
	e, _ := newEngine(t)
	e.Callers.SetCertificates([]caller.Certificate{
		{Name: "dns:ci.example", Caller: "ci", Trust: 1},
		{Name: "cn:admin", Caller: "admin", Trust: 3, Operator: true},
	})
	s = New(Options{Engine: e, Token: ownToken, TLS: source.Config(), Trusts: source.Trusts})
	return &encrypted{s, a, source, listen(t, s, "tcp", "127.0.0.1:0").String()}
}

// client returns a client with a certificate that has a DNS name or common name, or with none.
func (e *encrypted) client(t *testing.T, name, token string) *client.Client {
	t.Helper()
	files := client.TLSFiles{CA: e.authority.File()}
	if kind, name, ok := strings.Cut(name, ":"); ok {
		template := x509.Certificate{Subject: pkix.Name{CommonName: name}}
		if kind == "dns" {
			template = x509.Certificate{DNSNames: []string{name}}
		}
		p := e.authority.Issue(t, strings.ReplaceAll(name, ".", "-"), template)
		files.Cert, files.Key = p.Cert, p.Key
	}
	c, err := files.Config()
	if err != nil {
		t.Fatal(err)
	}
	cl, err := client.New(client.Options{Address: e.address, Token: token, TLS: c})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func TestClientCertificateIdentifies(t *testing.T) {
	t.Parallel()
	e := serveTLS(t, false)
	issued, err := e.opts.Engine.Callers.CreateToken(t.Context(), caller.Local(""), v1.TokenRequest{Caller: "ann", Trust: 1})
	if err != nil {
		t.Fatal(err)
	}
	// Only operators list tokens.
	for _, c := range []struct {
		name, certificate, token string
		check                    func(error) bool
	}{
		{"operator's certificate", "cn:admin", "", func(err error) bool { return err == nil }},
		{"caller's certificate", "dns:ci.example", "", errdefs.IsPermissionDenied},
		{"certificate without an entry", "dns:other.example", "", errdefs.IsUnauthorized},
		{"no certificate", "", "", errdefs.IsUnauthorized},
		{"no certificate, own token", "", ownToken, func(err error) bool { return err == nil }},
		{"token before certificate", "cn:admin", issued.Secret, errdefs.IsPermissionDenied},
		{"bad token before certificate", "cn:admin", issued.Secret[:len(issued.Secret)-1] + "!", errdefs.IsUnauthorized},
	} {
		if _, err := e.client(t, c.certificate, c.token).Tokens.List(t.Context()); !c.check(err) {
			t.Errorf("%s: Tokens.List = %v, want another error", c.name, err)
		}
	}
}

// Connections with TLS belong to their callers like others, and close when an entry is removed.
func TestClientCertificateConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	e := serveTLS(t, false)
	cl := e.client(t, "dns:ci.example", "")
	if _, err := cl.Templates.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	if conns, _, _, _ := e.conns.Held("ci"); conns != 1 {
		t.Errorf("%d connections of ci are counted, want 1", conns)
	}
	e.opts.Engine.Callers.SetCertificates(nil)
	if _, err := cl.Templates.List(t.Context()); !errdefs.IsUnauthorized(err) {
		t.Errorf("request after the entry was removed = %v, want Unauthenticated", err)
	}
}

// A page in a browser must not use the browser's certificate.
func TestClientCertificateOfOtherOriginIsRefused(t *testing.T) {
	t.Parallel()
	e := serveTLS(t, false)
	p := e.authority.Issue(t, "admin", x509.Certificate{Subject: pkix.Name{CommonName: "admin"}})
	config, err := client.TLSFiles{CA: e.authority.File(), Cert: p.Cert, Key: p.Key}.Config()
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	for origin, status := range map[string]int{"https://evil.example": 403, "https://" + e.address: 200} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+e.address+"/v1/tokens",
			strings.NewReader(`{"caller": "x"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Origin", origin)
		r.Header.Set("Content-Type", "application/json")
		res, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != status && (status != 200 || res.StatusCode >= 300) {
			t.Errorf("POST with Origin %s = %d, want %d", origin, res.StatusCode, status)
		}
	}
}

func TestFailedHandshakesAreTLSErrors(t *testing.T) {
	t.Parallel()
	e := serveTLS(t, true)
	plainServer, _ := newServer(t, "")
	strange := client.TLSFiles{CA: testtls.New(t).File()}
	strangeConfig, err := strange.Config()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		address string
		config  *tls.Config
	}{
		{"unknown authority", e.address, strangeConfig},
		{"plain HTTP", "http://" + e.address, nil},
		{"TLS to plain HTTP", strings.TrimPrefix(plainServer.URL, "http://"), strangeConfig},
	} {
		cl, err := client.New(client.Options{Address: c.address, TLS: c.config})
		if err != nil {
			t.Fatal(err)
		}
		_, err = cl.Version(t.Context())
		if te, ok := errors.AsType[*client.TLSError](err); !ok || te.Remote {
			t.Errorf("%s: Version = %v, want a local TLSError", c.name, err)
		}
		cl.Close()
	}
	_, err = e.client(t, "", ownToken).Version(t.Context())
	if te, ok := errors.AsType[*client.TLSError](err); !ok || !te.Remote {
		t.Errorf("no certificate: Version = %v, want a remote TLSError", err)
	}
	if _, err := e.client(t, "dns:other.example", ownToken).Version(t.Context()); err != nil {
		t.Errorf("certificate and token: Version = %v, want nil", err)
	}
}

func TestIdentifyCertificateAfterExpiryFails(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	e.Callers.SetCertificates([]caller.Certificate{{Name: "cn:ci", Caller: "ci"}})
	leaf := &x509.Certificate{Subject: pkix.Name{CommonName: "ci"}, NotAfter: time.Now().Add(time.Hour)}
	if p, ok := e.Callers.IdentifyCertificate(leaf); !ok || p.Caller != "ci" || !p.Expires.Equal(leaf.NotAfter) {
		t.Errorf("IdentifyCertificate = %+v, %v; want caller ci until the expiry", p, ok)
	}
	leaf.NotAfter = time.Now().Add(-time.Second)
	if _, ok := e.Callers.IdentifyCertificate(leaf); ok {
		t.Error("IdentifyCertificate of an expired certificate succeeded, want false")
	}
}

// A connection that began with an authority is of no use when the authority is removed.
func TestCertificatesOfARemovedAuthorityAreRefused(t *testing.T) {
	t.Parallel()
	e := serveTLS(t, false)
	admin := e.client(t, "cn:admin", "")
	if _, err := admin.Tokens.List(t.Context()); err != nil {
		t.Fatalf("Tokens.List = %v, want no error", err)
	}
	p := e.authority.Issue(t, "stream", x509.Certificate{DNSNames: []string{"ci.example"}})
	config, err := client.TLSFiles{CA: e.authority.File(), Cert: p.Cert, Key: p.Key}.Config()
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	stream, err := (&http.Client{Transport: transport}).Get("https://" + e.address + "/v1/events?follow=true")
	if err != nil || stream.StatusCode != http.StatusOK {
		t.Fatalf("GET /v1/events = %+v, %v; want 200", stream, err)
	}
	defer stream.Body.Close()
	events := make(chan error, 1)
	go func() { // ends with the server at the latest
		_, err := io.Copy(io.Discard, stream.Body)
		events <- err
	}()
	replaced, err := os.ReadFile(testtls.New(t).File())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(e.authority.File(), replaced, 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := e.source.Reload(); !changed || err != nil {
		t.Fatalf("Reload() = %t, %v; want true and no error", changed, err)
	}
	select {
	case err := <-events:
		if err == nil {
			t.Error("the stream of events ended without an error, want that its connection was closed")
		}
	case <-time.After(10 * time.Second):
		t.Error("the stream of events goes on, want it to end with its authority")
	}
	if _, err := admin.Tokens.List(t.Context()); err == nil {
		t.Error("Tokens.List with a certificate of the removed authority succeeded, want an error")
	}
}
