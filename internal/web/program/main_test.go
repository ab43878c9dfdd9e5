package program

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world has hosts of all names, with and without TLS, behind a proxy that denies names that end in
// "denied.example".
type world struct {
	proxy string
	roots string
	hosts http.Handler
	raw   func(net.Conn) // serves raw.example
	mu    sync.Mutex
	asked []string // requests that reached hosts, as method and URL
}

// newWorld serves hosts until the test ends.
func newWorld(t *testing.T, hosts http.Handler) *world {
	t.Helper()
	w := &world{hosts: hosts}
	authority, pair := newAuthority(t)
	w.roots = string(authority)
	plain := httptest.NewServer(http.HandlerFunc(w.host))
	t.Cleanup(plain.Close)
	secure := httptest.NewUnstartedServer(http.HandlerFunc(w.host))
	secure.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	secure.Config.ErrorLog = quiet()
	secure.StartTLS()
	t.Cleanup(secure.Close)
	p := &proxy{w: w, plain: plain.Listener.Addr().String(), secure: secure.Listener.Addr().String()}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	w.proxy = server.Listener.Addr().String()
	return w
}

func (w *world) host(rw http.ResponseWriter, r *http.Request) {
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	w.mu.Lock()
	w.asked = append(w.asked, r.Method+" "+scheme+r.Host+r.URL.RequestURI())
	w.mu.Unlock()
	w.hosts.ServeHTTP(rw, r)
}

// proxy is a minimal gateway.
type proxy struct {
	w             *world
	plain, secure string
}

func (p *proxy) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	name, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		name, port = r.Host, "80"
	}
	to := p.plain
	if port == "443" {
		to = p.secure
	}
	inside, _, err := rw.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer inside.Close()
	if strings.HasSuffix(name, "denied.example") {
		io.WriteString(inside, "HTTP/1.1 403 no rule allows "+
			name+"\r\nOrchestrator-Refusal: denied\r\nContent-Length: 0\r\n\r\n")
		return
	}
	if name == "nowhere.example" {
		io.WriteString(inside,
			"HTTP/1.1 502 nowhere.example has no address\r\nOrchestrator-Refusal: name\r\nContent-Length: 0\r\n\r\n")
		return
	}
	if r.Method != http.MethodConnect {
		if name == "raw.example" {
			p.w.raw(inside)
			return
		}
		outside, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		defer outside.Close()
		r.Header.Set("Connection", "close")
		if r.Write(outside) == nil {
			io.Copy(inside, outside)
		}
		return
	}
	io.WriteString(inside, "HTTP/1.1 200 OK\r\n\r\n")
	if name == "raw.example" {
		p.w.raw(inside)
		return
	}
	outside, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer outside.Close()
	var both sync.WaitGroup
	both.Go(func() { io.Copy(outside, inside); outside.(*net.TCPConn).CloseWrite() })
	io.Copy(inside, outside)
	inside.Close()
	both.Wait()
}

// newAuthority returns a certificate authority in PEM and a certificate for the test hosts.
func newAuthority(t *testing.T) ([]byte, tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"site.example", "other.example", "xn--bcher-kva.example"}, IsCA: true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// fetch runs the program with defaults for missing fields of the request.
func (w *world) fetch(t *testing.T, req web.Request) *web.Answer {
	t.Helper()
	if req.Method == "" {
		req.Method = "GET"
	}
	if req.TimeoutMS == 0 {
		req.TimeoutMS = 300_000
	}
	if req.MaxBytes == 0 {
		req.MaxBytes = web.MaxBody
	}
	if req.Redirects == "" {
		req.Redirects, req.MaxRedirects = web.Follow, web.MaxRedirects
	}
	if req.Form == "" {
		req.Form = web.Text
	}
	req.Proxy = w.proxy
	if req.Roots == "" {
		req.Roots = w.roots
	}
	in, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, in)
}

func run(t *testing.T, in []byte) *web.Answer {
	t.Helper()
	var out bytes.Buffer
	if code := Main(context.Background(), bytes.NewReader(in), &out); code != 0 {
		t.Fatalf("exit code = %d, want 0", code)
	}
	if out.Len() > web.MaxAnswer {
		t.Errorf("answer of %d bytes, want at most %d", out.Len(), web.MaxAnswer)
	}
	a := &web.Answer{}
	if err := json.Unmarshal(out.Bytes(), a); err != nil {
		t.Fatal(err)
	}
	return a
}

// faulty checks that the answer has a fault of this kind that contains says, or no fault if kind is
// "".
func faulty(t *testing.T, name string, a *web.Answer, kind, says string) {
	t.Helper()
	switch {
	case kind == "" && a.Fault != nil:
		t.Errorf("%s: fault %s: %s, want none", name, a.Fault.Kind, a.Fault.Message)
	case kind != "" && (a.Fault == nil || a.Fault.Kind != kind || !strings.Contains(a.Fault.Message, says)):
		t.Errorf("%s: fault %+v, want kind %s with %q", name, a.Fault, kind, says)
	}
}
