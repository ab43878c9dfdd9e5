//go:build integration

package scenarios

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// portServers is a program with servers on a sandbox's loopback: HTTP that describes the request
// and answers with hostile headers (8080), WebSockets that echo a text (8081), a stream that echoes
// bytes (9000), and one that answers with garbage (9001).
const portServers = `
import base64, hashlib, http.server, json, socket, struct, threading
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        out = json.dumps({"method": self.command, "path": self.path, "body": body, "header": dict(self.headers)}).encode()
        self.send_response(302 if self.path == "/to" else 200)
        for k, v in (("Set-Cookie", "a=b; Path=/"), ("Clear-Site-Data", '"*"'), ("Strict-Transport-Security", "max-age=9"),
                     ("Content-Security-Policy", "default-src 'self'"), ("X-Own", "kept"), ("Location", "/landed?q=1")):
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)
    do_GET = do_POST = do_DELETE = any
    def log_message(self, *a): pass
def each(port, f):
    s = socket.create_server(("127.0.0.1", port), backlog=64)
    while True:
        threading.Thread(target=f, args=(s.accept()[0],), daemon=True).start()
def echo(c):
    while True:
        b = c.recv(65536)
        if not b: break
        c.sendall(b)
    c.sendall(b"the end")
    c.close()
def garbage(c):
    c.recv(65536)
    c.sendall(b"\x00\xffsecret of the server\r\n")
    c.close()
def ws(c):
    f = c.makefile("rwb")
    key = ""
    while True:
        line = f.readline().decode().strip()
        if not line: break
        if line.lower().startswith("sec-websocket-key:"): key = line.split(":", 1)[1].strip()
    accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
    f.write(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
             "Sec-WebSocket-Accept: " + accept + "\r\n\r\n").encode())
    f.flush()
    n = f.read(2)[1] & 127
    mask, data = f.read(4), f.read(n)
    data = bytes(b ^ mask[i % 4] for i, b in enumerate(data))
    f.write(bytes([0x81, len(data)]) + data); f.flush()
    f.read(1)
for port, f in ((8081, ws), (9000, echo), (9001, garbage)):
    threading.Thread(target=each, args=(port, f), daemon=True).start()
http.server.ThreadingHTTPServer(("127.0.0.1", 8080), H).serve_forever()
`

// startPortServers starts portServers in a sandbox and waits until all listen.
func startPortServers(t *testing.T, s *harness.Server, id string) {
	t.Helper()
	program := v1.Exec{Argv: []string{"python3", "-c", portServers}}
	if _, err := s.Client.StartShell(within(t), id, v1.ShellRequest{Exec: program}); err != nil {
		t.Fatal(err)
	}
	for _, port := range []int{8080, 8081, 9000, 9001} {
		harness.Eventually(t, harness.Short, fmt.Sprintf("port %d listens", port), func() bool {
			c, err := s.Client.Dial(within(t), id, port)
			if err == nil {
				c.Close()
			}
			return err == nil
		})
	}
}

// TestPorts reaches servers in a sandbox through the service: over HTTP, WebSockets and as a stream
// of bytes.
func TestPorts(t *testing.T) {
	t.Parallel()
	onAllKernels(t, func(t *testing.T, k kernel) {
		s := harness.Run(t, harness.Options{Runtime: k.runtime, Config: k.config(onDemand), Seed: &seed})
		id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
		startPortServers(t, s, id)
		at := "/v1/sandboxes/" + id + "/ports/"
		t.Run("HTTP", func(t *testing.T) { testPortOfHTTP(t, s, at) })
		t.Run("WebSocket", func(t *testing.T) { testPortOfWebSockets(t, s, at) })
		t.Run("bytes", func(t *testing.T) { testPortOfBytes(t, s, id) })
		t.Run("refusals", func(t *testing.T) { testPortRefusals(t, s, at, id) })
		t.Run("forward", func(t *testing.T) { testPortForward(t, s, id) })
		t.Run("other callers", func(t *testing.T) { testPortsAreHidden(t, s, id) })
		t.Run("ends with the lease", func(t *testing.T) {
			c, err := s.Client.Dial(within(t), id, 9000)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			release(t, s, id)
			if err := c.SetReadDeadline(time.Now().Add(harness.Short)); err != nil {
				t.Fatal(err)
			}
			if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("read from a port of a released sandbox: %d bytes, %v; want the end of the stream", n, err)
			}
			if _, err := s.Client.Dial(within(t), id, 9000); !errdefs.IsNotFound(err) {
				t.Errorf("Dial to a released sandbox: %v, want not found", err)
			}
		})
	})
}

// testPortOfHTTP sends a request through the proxy. The path and body must be unchanged, and
// neither side may get headers that would affect the service's own pages.
func testPortOfHTTP(t *testing.T, s *harness.Server, at string) {
	s.Ask(t, "POST", at+"8080/", "", "Authorization", "Bearer unknown").
		Problem(t, http.StatusUnauthorized, "unauthenticated", "")
	got := s.Ask(t, "POST", at+"8080/a%2Fb/c?x=1&y=%20", "body",
		"Cookie", "ours=1", "X-Thing", "passes", "Referer", "http://orchestrator/secret")
	var request struct {
		Method, Path, Body string
		Header             map[string]string
	}
	if got.Status != http.StatusOK {
		t.Fatalf("POST through the proxy: status %d, want 200: %s", got.Status, got.Body)
	}
	got.Into(t, &request)
	if request.Method != http.MethodPost || request.Path != "/a%2Fb/c?x=1&y=%20" || request.Body != "body" {
		t.Errorf("the server got %+v, want the method, path and body unchanged", request)
	}
	for name, want := range map[string]string{
		"X-Thing": "passes", "Host": "localhost:8080", "X-Forwarded-Prefix": at + "8080",
	} {
		if request.Header[name] != want {
			t.Errorf("the server got %s: %q, want %q", name, request.Header[name], want)
		}
	}
	for _, name := range []string{"Cookie", "Referer", "X-Forwarded-For"} {
		if v, ok := request.Header[name]; ok {
			t.Errorf("the server got %s: %q, want the header removed", name, v)
		}
	}
	for _, name := range []string{"Set-Cookie", "Clear-Site-Data", "Strict-Transport-Security"} {
		if v := got.Header.Get(name); v != "" {
			t.Errorf("the client got %s: %q, want the header removed", name, v)
		}
	}
	policy := got.Header.Values("Content-Security-Policy")
	if len(policy) != 2 || !strings.HasPrefix(policy[1], "sandbox ") || strings.Contains(policy[1], "same-origin") {
		t.Errorf("Content-Security-Policy = %q, want a second policy that is a sandbox without same-origin", policy)
	}
	if got.Header.Get("Referrer-Policy") != "no-referrer" || got.Header.Get("X-Own") != "kept" {
		t.Errorf("header of the answer = %v, want Referrer-Policy no-referrer and X-Own kept", got.Header)
	}
	if got.Header.Get("Location") != at+"8080/landed?q=1" {
		t.Errorf("Location = %q, want the path below the port", got.Header.Get("Location"))
	}
}

// testPortOfWebSockets exchanges a message through the proxy, which must refuse pages of other
// origins.
func testPortOfWebSockets(t *testing.T, s *harness.Server, at string) {
	hc := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.Socket())
	}}}
	defer hc.CloseIdleConnections()
	// Dial documents that the response needs no Close
	conn, _, err := websocket.Dial(within(t), "http://orchestrator"+at+"8081/", &websocket.DialOptions{HTTPClient: hc})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if err := conn.Write(within(t), websocket.MessageText, []byte("héllo")); err != nil {
		t.Fatal(err)
	}
	if _, b, err := conn.Read(within(t)); err != nil || string(b) != "héllo" {
		t.Errorf("WebSocket echo = %q, %v; want héllo", b, err)
	}
	got := s.Ask(t, "GET", at+"8081/", "", "Connection", "Upgrade", "Upgrade", "websocket", "Origin",
		"https://evil.example")
	if got.Status != http.StatusForbidden {
		t.Errorf("WebSocket of another origin: status %d, want 403: %s", got.Status, got.Body)
	}
}

// testPortOfBytes sends more than any buffer holds on several connections and closes their sending
// side. It must receive all bytes back, and what the server writes after the end of its input.
func testPortOfBytes(t *testing.T, s *harness.Server, id string) {
	const end = "the end"
	sent := make([]byte, 4<<20)
	rand.Read(sent)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			c, err := s.Client.Dial(within(t), id, 9000)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			var writing sync.WaitGroup
			writing.Go(func() {
				if _, err := c.Write(sent); err != nil {
					t.Error(err)
				}
				if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
					t.Error(err)
				}
			})
			got, err := io.ReadAll(c)
			if err != nil || !bytes.Equal(got, append(bytes.Clone(sent), end...)) {
				t.Errorf("%d bytes came back, want %d and %q; %v", len(got), len(sent), end, err)
			}
			writing.Wait()
		})
	}
	all.Wait()
	hc := &http.Client{Transport: s.Client.PortTransport(id)}
	defer hc.CloseIdleConnections()
	resp, err := hc.Get("http://localhost:8080/plain")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Set-Cookie") == "" {
		t.Errorf("GET with PortTransport: status %d, header %v; want 200 with the server's cookie",
			resp.StatusCode, resp.Header)
	}
}

// testPortRefusals checks the errors of ports that are closed, invalid or do not speak HTTP.
func testPortRefusals(t *testing.T, s *harness.Server, at, id string) {
	p := s.Ask(t, "GET", at+"7/", "").Problem(t, http.StatusBadGateway, "unavailable", "port")
	if !strings.Contains(p.Detail, "port 7: nothing listens on") {
		t.Errorf("detail for a closed port is %q, want the port", p.Detail)
	}
	p = s.Ask(t, "GET", at+"9001/", "").Problem(t, http.StatusBadGateway, "unavailable", "port")
	if strings.Contains(p.Detail, "secret") {
		t.Errorf("detail for a server without HTTP is %q, want none of its bytes", p.Detail)
	}
	for _, port := range []string{"0", "65536", "-1", "http", "8080x"} {
		s.Ask(t, "GET", at+port+"/", "").Problem(t, http.StatusBadRequest, "invalid_argument", "port")
	}
	s.Ask(t, "GET", at+"9000", "", "Connection", "Upgrade", "Upgrade", "h2c").
		Problem(t, http.StatusBadRequest, "invalid_argument", "Upgrade")
	got := s.Ask(t, "GET", at+"7", "", "Connection", "Upgrade", "Upgrade", "tcp")
	if got.Status != http.StatusBadGateway {
		t.Errorf("stream to a closed port: status %d, want 502: %s", got.Status, got.Body)
	}
	if _, err := s.Client.Dial(within(t), id, 7); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "port 7") {
		t.Errorf("Dial to a closed port: %v, want unavailable with its number", err)
	}
}

// testPortForward forwards local ports on the command line.
func testPortForward(t *testing.T, s *harness.Server, id string) {
	for _, bad := range []string{"0", "x", "1:0", "70000", "1:2:3", ":9"} {
		s.CLI(t, "forward", id, bad).Is(t, 64, "invalid port")
	}
	r := s.Launch(t, nil, "forward", id, "0:9000", "0:7")
	harness.Eventually(t, harness.Short, "the command prints its two addresses", func() bool {
		return strings.Count(r.Output(), "\n") == 2
	})
	var addresses [2]string
	for i, line := range strings.Split(strings.TrimSpace(r.Output()), "\n") {
		addresses[i], _, _ = strings.Cut(line, " -> ")
	}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			c, err := net.Dial("tcp", addresses[0])
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			fmt.Fprintf(c, "hello %d ", i)
			c.(*net.TCPConn).CloseWrite()
			if got, err := io.ReadAll(c); err != nil || string(got) != fmt.Sprintf("hello %d the end", i) {
				t.Errorf("answer %d through the forwarded port: %q, %v; want the echo and the end", i, got, err)
			}
		})
	}
	all.Wait()
	c, err := net.Dial("tcp", addresses[1])
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); len(got) != 0 || err != nil {
		t.Errorf("read from a closed port: %q, %v; want the end of the stream", got, err)
	}
	c.Close()
	r.Signal(syscall.SIGINT)
	end := r.Wait()
	end.Is(t, 0, "port 7: nothing listens on")
	if strings.Count(end.Stderr, "\n") != 1 {
		t.Errorf("stderr of forward is %q, want one line", end.Stderr)
	}
}

// testPortsAreHidden checks that ports answer other callers like those of an unknown sandbox, and
// refuse callers that may only call tools.
func testPortsAreHidden(t *testing.T, s *harness.Server, id string) {
	bob := newCaller(t, s, `{"caller":"bob","trust":3}`)
	tools := newCaller(t, s, `{"caller":"eve","trust":3,"profile":"readonly"}`)
	for _, path := range []string{
		"/v1/sandboxes/ID/ports/8080/x", "/v1/sandboxes/ID/ports/9000", "/v1/sandboxes/ID/egress",
	} {
		header := append([]string{"Connection", "Upgrade", "Upgrade", "tcp"}, bob.header...)
		request := func(sandbox string) harness.Answer {
			return s.Ask(t, "GET", strings.Replace(path, "ID", sandbox, 1), "", header...)
		}
		existing, unknown := request(id), request(unknownID)
		if existing.Status != http.StatusNotFound ||
			strings.ReplaceAll(string(existing.Body), id, unknownID) != string(unknown.Body) {
			t.Errorf("GET %s of another caller: status %d, %s; want the answer for an unknown sandbox: %s",
				path, existing.Status, existing.Body, unknown.Body)
		}
		if strings.Contains(path, "ports") {
			tools.request(t, "GET", strings.Replace(path, "ID", id, 1), "").
				Problem(t, http.StatusForbidden, "permission_denied", "")
		}
	}
	if _, err := bob.client(t).Dial(within(t), id, 9000); !errdefs.IsNotFound(err) {
		t.Errorf("Dial of another caller: %v, want not found", err)
	}
}
