//go:build integration

// Package proxy tests the service behind real reverse proxies, with the configurations of
// docs/reverse-proxy.md.
package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// name is the host name in the page's configurations.
const name = "agents.example.com"

var seed harness.Seed

func TestMain(m *testing.M) {
	code := m.Run()
	if err := seed.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// page returns the code block of the page that is in the given language.
func page(t *testing.T, language string) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/reverse-proxy.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindStringSubmatch(string(b))
	if m == nil {
		t.Fatalf("docs/reverse-proxy.md has no %s block", language)
	}
	return m[1]
}

// replaced replaces each of the old texts, which must occur.
func replaced(t *testing.T, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i+1 < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("%q is not in the configuration %s", pairs[i], text)
		}
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	return text
}

// nginx returns the command that runs the page's configuration without TLS.
func nginx(t *testing.T, dir, listen, to string) *exec.Cmd {
	t.Helper()
	server := regexp.MustCompile(`(?m)^\s*ssl_certificate.*\n`).ReplaceAllString(page(t, "nginx"), "")
	server = replaced(t, server, "listen 443 ssl;", "listen "+listen+";", "127.0.0.1:7070", to)
	file := filepath.Join(dir, "nginx.conf")
	harness.WriteFile(t, file, fmt.Sprintf(`daemon off;
pid %[1]s/pid;
error_log stderr;
events {}
http {
    access_log off;
    client_body_temp_path %[1]s/body;
    proxy_temp_path %[1]s/proxy;
    fastcgi_temp_path %[1]s/fastcgi;
    uwsgi_temp_path %[1]s/uwsgi;
    scgi_temp_path %[1]s/scgi;
    %[2]s
}
`, dir, server))
	return exec.Command("nginx", "-p", dir, "-c", file, "-e", "stderr")
}

// caddy returns the command that runs the page's configuration without TLS.
func caddy(t *testing.T, dir, listen, to string) *exec.Cmd {
	t.Helper()
	_, port, err := net.SplitHostPort(listen)
	if err != nil {
		t.Fatal(err)
	}
	text := replaced(t, page(t, "caddy"), name+" {", "http://"+name+":"+port+" {", "127.0.0.1:7070", to)
	file := filepath.Join(dir, "Caddyfile")
	harness.WriteFile(t, file, "{\n admin off\n}\n"+text)
	cmd := exec.Command("caddy", "run", "--config", file, "--adapter", "caddyfile")
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	return cmd
}

// start runs a proxy on a free port until the test ends, and returns a client that reaches it by
// name.
func start(t *testing.T, to *url.URL, make func(t *testing.T, dir, listen, to string) *exec.Cmd) *http.Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listen := l.Addr().String()
	l.Close()
	dir := harness.TempDir(t)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := make(t, dir, listen, to.Host)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: run integration/scripts/deps.sh", err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
		if b, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("the proxy's log: %s", b)
		}
	})
	dialer := &net.Dialer{}
	way := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, listen)
	}}
	t.Cleanup(way.CloseIdleConnections)
	harness.Eventually(t, harness.Long, "the proxy listens", func() bool {
		conn, err := net.Dial("tcp", listen)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return &http.Client{Transport: way}
}

// bearer adds a token to requests.
type bearer struct {
	token string
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

func TestServiceBehindReverseProxy(t *testing.T) {
	harness.Need(t, harness.EnvBin)
	t.Parallel()
	for program, make := range map[string]func(t *testing.T, dir, listen, to string) *exec.Cmd{
		"nginx": nginx, "caddy": caddy,
	} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			to, token := harness.ServeTCP(t, harness.Options{
				Runtime: "oci", Seed: &seed, Config: harness.DefaultConfig + "allowed_hosts: [" + name + "]\n",
			})
			client := start(t, to, make)
			client.Transport = bearer{token, client.Transport}
			checkStream(t, client)
			checkHandshake(t, client)
			checkMCP(t, client)
			if got := send(t, client, http.MethodPost, "/shell", "{}"); got.StatusCode != http.StatusNotFound {
				t.Errorf("POST /shell through the proxy = %d, want 404", got.StatusCode)
			}
		})
	}
}

// TestUnknownHostIsRefused sends a proxy's Host to a service that does not know it.
func TestUnknownHostIsRefused(t *testing.T) {
	harness.Need(t, harness.EnvBin)
	t.Parallel()
	to, token := harness.ServeTCP(t, harness.Options{Runtime: "oci", Seed: &seed})
	client := start(t, to, nginx)
	client.Transport = bearer{token, client.Transport}
	res := send(t, client, http.MethodPost, "/mcp", "{}")
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	p, ok := v1.Decode(b)
	if !ok || res.StatusCode != http.StatusForbidden || p.Code != "permission_denied" ||
		!strings.Contains(p.Detail, "allowed_hosts") || !strings.Contains(p.Detail, name) {
		t.Errorf("POST /mcp by an unknown name = %d %s, want a problem that names allowed_hosts", res.StatusCode, b)
	}
}

// send sends a request by the proxy's name. The test closes the body.
func send(t *testing.T, c *http.Client, method, path, body string, header ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+name+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// checkStream checks that output arrives while its command runs: the command waits for a file that
// is written only after its first line has arrived.
func checkStream(t *testing.T, c *http.Client) {
	t.Helper()
	var box v1.Sandbox
	readJSON(t, send(t, c, http.MethodPost, "/v1/sandboxes", "{}"), &box)
	res := send(t, c, http.MethodPost, "/v1/sandboxes/"+box.ID+"/exec",
		`{"command": "echo first; until test -e /tmp/go; do sleep 0.05; done; echo last"}`, "Accept", "text/event-stream")
	all := ""
	for buf := make([]byte, 4096); ; {
		n, err := res.Body.Read(buf)
		all += string(buf[:n])
		if strings.Contains(all, "first") && !strings.Contains(all, "last") {
			send(t, c, http.MethodPut, "/v1/sandboxes/"+box.ID+"/files?path=/tmp/go", "")
		}
		if err != nil {
			break
		}
	}
	if !strings.Contains(all, "last") || !strings.Contains(all, `"exited"`) {
		t.Errorf("the stream of a command = %q, want both lines and its end", all)
	}
}

// checkHandshake checks that a page of the public name can open a terminal.
func checkHandshake(t *testing.T, c *http.Client) {
	t.Helper()
	var box v1.Sandbox
	readJSON(t, send(t, c, http.MethodPost, "/v1/sandboxes", "{}"), &box)
	res := send(t, c, http.MethodGet, "/v1/sandboxes/"+box.ID+"/pty", "", "Connection", "Upgrade", "Upgrade", "websocket",
		"Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "MDEyMzQ1Njc4OWFiY2RlZg==",
		"Sec-WebSocket-Protocol", v1.TerminalProtocol, "Origin", "https://"+name)
	if res.StatusCode != http.StatusSwitchingProtocols {
		b, _ := io.ReadAll(res.Body)
		t.Errorf("handshake of a terminal = %d %s, want 101", res.StatusCode, b)
	}
}

// checkMCP runs a session with progress, which needs streams that are not buffered.
func checkMCP(t *testing.T, c *http.Client) {
	t.Helper()
	progress := make(chan string, 100)
	client := mcp.NewClient(&mcp.Implementation{Name: "proxied", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			progress <- r.Params.Message
		},
	})
	cs, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: "http://" + name + "/mcp", HTTPClient: c}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	call := &mcp.CallToolParams{Name: "system_bash", Arguments: map[string]any{"command": "echo one; sleep 1; echo two"}}
	call.SetProgressToken("x")
	r, err := cs.CallTool(t.Context(), call)
	if err != nil || r.IsError || len(progress) == 0 {
		t.Errorf("system_bash through the proxy = %+v, %v with %d progress messages; want success with some",
			r, err, len(progress))
	}
}

// readJSON decodes a successful answer.
func readJSON(t *testing.T, res *http.Response, v any) {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode/100 != 2 {
		t.Fatalf("answer %d %s, %v; want success", res.StatusCode, b, err)
	}
	harness.Answer{Body: b}.Into(t, v)
}
