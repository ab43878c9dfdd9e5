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

// inside are servers for a sandbox's loopback: HTTP that tells what it was
// asked and tries to reach beyond its page (8080), WebSockets that echo a text
// (8081), bytes that echo (9000), and what is no HTTP (9001).
const inside = `
import base64, hashlib, http.server, json, socket, struct, threading
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        out = json.dumps({"method": self.command, "path": self.path, "body": body, "header": dict(self.headers)}).encode()
        self.send_response(302 if self.path == "/to" else 200)
        for k, v in (("Set-Cookie", "a=b; Path=/"), ("Clear-Site-Data", '"*"'), ("Strict-Transport-Security", "max-age=9"), ("Content-Security-Policy", "default-src 'self'"), ("X-Own", "kept"), ("Location", "/landed?q=1")):
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
    f.write(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + "\r\n\r\n").encode()); f.flush()
    n = f.read(2)[1] & 127
    mask, data = f.read(4), f.read(n)
    data = bytes(b ^ mask[i % 4] for i, b in enumerate(data))
    f.write(bytes([0x81, len(data)]) + data); f.flush()
    f.read(1)
for port, f in ((8081, ws), (9000, echo), (9001, garbage)):
    threading.Thread(target=each, args=(port, f), daemon=True).start()
http.server.ThreadingHTTPServer(("127.0.0.1", 8080), H).serve_forever()
`

// servers starts them in a sandbox and waits until all listen.
func servers(t *testing.T, s *harness.Server, id string) {
	t.Helper()
	if _, err := s.Client.StartShell(within(t), id, v1.ShellRequest{Exec: v1.Exec{Argv: []string{"python3", "-c", inside}}}); err != nil {
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

func TestPorts(t *testing.T) {
	t.Parallel()
	eachKernel(t, func(t *testing.T, k kernel) {
		s := harness.Run(t, harness.Options{Runtime: k.runtime, Config: k.of(onDemand), Seed: &seed})
		id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
		servers(t, s, id)
		at := "/v1/sandboxes/" + id + "/ports/"
		t.Run("HTTP", func(t *testing.T) { portOfHTTP(t, s, at) })
		t.Run("WebSocket", func(t *testing.T) { portOfWebSockets(t, s, at) })
		t.Run("bytes", func(t *testing.T) { portOfBytes(t, s, id, "the end") })
		t.Run("refusals", func(t *testing.T) { portRefusals(t, s, at, id) })
		t.Run("forward", func(t *testing.T) { portForward(t, s, id) })
		t.Run("others", func(t *testing.T) { portsAreOnesOwn(t, s, id) })
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
				t.Errorf("%d %v", n, err)
			}
			if _, err := s.Client.Dial(within(t), id, 9000); !errdefs.IsNotFound(err) {
				t.Errorf("%v", err)
			}
		})
	})
}

func portOfHTTP(t *testing.T, s *harness.Server, at string) {
	s.Ask(t, "POST", at+"8080/", "", "Authorization", "Bearer nobodys").Problem(t, http.StatusUnauthorized, "unauthenticated", "")
	got := s.Ask(t, "POST", at+"8080/a%2Fb/c?x=1&y=%20", "body", "Cookie", "ours=1", "X-Thing", "passes", "Referer", "http://orchestrator/secret")
	var told struct {
		Method, Path, Body string
		Header             map[string]string
	}
	if got.Status != http.StatusOK {
		t.Fatalf("%d %s", got.Status, got.Body)
	}
	got.Into(t, &told)
	if told.Method != "POST" || told.Path != "/a%2Fb/c?x=1&y=%20" || told.Body != "body" || told.Header["X-Thing"] != "passes" || told.Header["Host"] != "localhost:8080" || told.Header["X-Forwarded-Prefix"] != at+"8080" {
		t.Errorf("%+v", told)
	}
	for _, name := range []string{"Cookie", "Referer", "X-Forwarded-For"} {
		if v, there := told.Header[name]; there {
			t.Errorf("the server inside gets %s: %s", name, v)
		}
	}
	for _, name := range []string{"Set-Cookie", "Clear-Site-Data", "Strict-Transport-Security"} {
		if v := got.Header.Get(name); v != "" {
			t.Errorf("the server inside sets %s: %s", name, v)
		}
	}
	if policy := got.Header.Values("Content-Security-Policy"); len(policy) != 2 || !strings.HasPrefix(policy[1], "sandbox ") || strings.Contains(policy[1], "same-origin") || got.Header.Get("Referrer-Policy") != "no-referrer" || got.Header.Get("X-Own") != "kept" {
		t.Errorf("%v", got.Header)
	}
	if got.Header.Get("Location") != at+"8080/landed?q=1" {
		t.Errorf("a redirect leads to %q", got.Header.Get("Location"))
	}
}

func portOfWebSockets(t *testing.T, s *harness.Server, at string) {
	hc := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.Socket())
	}}}
	defer hc.CloseIdleConnections()
	conn, _, err := websocket.Dial(within(t), "http://orchestrator"+at+"8081/", &websocket.DialOptions{HTTPClient: hc})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if err := conn.Write(within(t), websocket.MessageText, []byte("héllo")); err != nil {
		t.Fatal(err)
	}
	if _, b, err := conn.Read(within(t)); err != nil || string(b) != "héllo" {
		t.Errorf("%q %v", b, err)
	}
	if got := s.Ask(t, "GET", at+"8081/", "", "Connection", "Upgrade", "Upgrade", "websocket", "Origin", "https://evil.example"); got.Status != http.StatusForbidden {
		t.Errorf("a page of another origin gets %d %s", got.Status, got.Body)
	}
}

// portOfBytes sends more than any buffer holds, ends its half, and gets all of
// it and what the server said after that: nothing, where it cannot be told.
func portOfBytes(t *testing.T, s *harness.Server, id, end string) {
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
				t.Errorf("%d bytes of %d come back: %v", len(got), len(sent), err)
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
		t.Errorf("through the transport: %d %v", resp.StatusCode, resp.Header)
	}
}

func portRefusals(t *testing.T, s *harness.Server, at, id string) {
	if p := s.Ask(t, "GET", at+"7/", "").Problem(t, http.StatusBadGateway, "unavailable", "port"); !strings.Contains(p.Detail, "port 7: nothing listens on") {
		t.Errorf("%s", p.Detail)
	}
	if p := s.Ask(t, "GET", at+"9001/", "").Problem(t, http.StatusBadGateway, "unavailable", "port"); strings.Contains(p.Detail, "secret") {
		t.Errorf("%s", p.Detail)
	}
	for _, port := range []string{"0", "65536", "-1", "http", "8080x"} {
		s.Ask(t, "GET", at+port+"/", "").Problem(t, http.StatusBadRequest, "invalid_argument", "port")
	}
	s.Ask(t, "GET", at+"9000", "", "Connection", "Upgrade", "Upgrade", "h2c").Problem(t, http.StatusBadRequest, "invalid_argument", "Upgrade")
	if got := s.Ask(t, "GET", at+"7", "", "Connection", "Upgrade", "Upgrade", "tcp"); got.Status != http.StatusBadGateway {
		t.Errorf("%d %s", got.Status, got.Body)
	}
	if _, err := s.Client.Dial(within(t), id, 7); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "port 7") {
		t.Errorf("%v", err)
	}
}

func portForward(t *testing.T, s *harness.Server, id string) {
	for _, bad := range []string{"0", "x", "1:0", "70000", "1:2:3", ":9"} {
		s.CLI(t, "forward", id, bad).Is(t, 64, "is no port")
	}
	r := s.Launch(t, nil, "forward", id, "0:9000", "0:7")
	harness.Eventually(t, harness.Short, "it says where it listens", func() bool { return strings.Count(r.Output(), "\n") == 2 })
	var where [2]string
	for i, line := range strings.Split(strings.TrimSpace(r.Output()), "\n") {
		where[i], _, _ = strings.Cut(line, " -> ")
	}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			c, err := net.Dial("tcp", where[0])
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			fmt.Fprintf(c, "hello %d ", i)
			c.(*net.TCPConn).CloseWrite()
			if got, err := io.ReadAll(c); err != nil || string(got) != fmt.Sprintf("hello %d the end", i) {
				t.Errorf("%q %v", got, err)
			}
		})
	}
	all.Wait()
	c, err := net.Dial("tcp", where[1])
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); len(got) != 0 || err != nil {
		t.Errorf("from a port where nothing listens: %q %v", got, err)
	}
	c.Close()
	r.Signal(syscall.SIGINT)
	end := r.Wait()
	if end.Is(t, 0, "port 7: nothing listens on"); strings.Count(end.Stderr, "\n") != 1 {
		t.Errorf("%s", end.Stderr)
	}
}

// portsAreOnesOwn: another caller, and one who may only call tools, reach none.
func portsAreOnesOwn(t *testing.T, s *harness.Server, id string) {
	bob := person(t, s, `{"caller":"bob","trust":3}`)
	tools := person(t, s, `{"caller":"eve","trust":3,"profile":"readonly"}`)
	const nobodys = "00000000-0000-7000-8000-000000000000"
	for _, path := range []string{"/v1/sandboxes/ID/ports/8080/x", "/v1/sandboxes/ID/ports/9000", "/v1/sandboxes/ID/egress"} {
		header := append([]string{"Connection", "Upgrade", "Upgrade", "tcp"}, bob.header...)
		theirs, none := s.Ask(t, "GET", strings.Replace(path, "ID", id, 1), "", header...), s.Ask(t, "GET", strings.Replace(path, "ID", nobodys, 1), "", header...)
		if theirs.Status != http.StatusNotFound || strings.ReplaceAll(string(theirs.Body), id, nobodys) != string(none.Body) {
			t.Errorf("%s: %d %s, and for nobody's %s", path, theirs.Status, theirs.Body, none.Body)
		}
		if strings.Contains(path, "ports") {
			tools.ask(t, "GET", strings.Replace(path, "ID", id, 1), "").Problem(t, http.StatusForbidden, "permission_denied", "")
		}
	}
	if _, err := bearer(t, s, bob).Dial(within(t), id, 9000); !errdefs.IsNotFound(err) {
		t.Errorf("%v", err)
	}
}
