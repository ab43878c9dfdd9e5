package portproxy

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"testing"
	"time"
)

func TestPortRedirectsStayBelowPrefix(t *testing.T) {
	const prefix = "/v1/sandboxes/a/ports/80"
	for to, want := range map[string]string{
		"/login":                      prefix + "/login",
		"/a%2Fb?x=1#y":                prefix + "/a%2Fb?x=1#y",
		"next":                        "next",
		"?q=1":                        "?q=1",
		"http://localhost:80/x":       prefix + "/x",
		"http://user@127.0.0.1:80/x":  prefix + "/x",
		"http://LOCALHOST:80":         prefix + "/",
		"http://localhost:81/x":       "http://localhost:81/x",
		"https://elsewhere.example/x": "https://elsewhere.example/x",
		"//elsewhere.example/x":       "//elsewhere.example/x",
		"/\\elsewhere.example":        prefix + "/%5Celsewhere.example",
		"http://[::1":                 prefix + "/",
	} {
		if got := rewriteLocation(to, prefix, 80); got != want {
			t.Errorf("%s leads to %s, want %s", to, got, want)
		}
	}
}

func TestPortPathsAreForwardedUnchanged(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/sandboxes/a/ports/80/":            "/",
		"/v1/sandboxes/a/ports/80/x/y?q=%20&z": "/x/y?q=%20&z",
		"/v1/sandboxes/a/ports/80/a%2F..%2Fb":  "/a%2F..%2Fb",
		"/v1/sandboxes/a/ports/80/ä":           "/%C3%A4",
		"/v1/sandboxes/a/ports/80/?":           "/?",
	} {
		in := httptest.NewRequest(http.MethodGet, path, nil)
		pr := &httputil.ProxyRequest{In: in, Out: in.Clone(t.Context())}
		rewriteRequest(pr, "/p", 80)
		if got := pr.Out.URL.RequestURI(); got != want || pr.Out.Host != "localhost:80" {
			t.Errorf("%s is asked for as %s of %s, want %s", path, got, pr.Out.Host, want)
		}
	}
}

// patience is how long a test waits for what must happen.
const patience = 2 * time.Minute

// throughPort sends a raw request through the proxy to a server that answers with raw text. It
// returns what each side received.
func throughPort(t *testing.T, request, answer string) (inside, outside string) {
	t.Helper()
	server, near := net.Pipe()
	asked := make(chan string, 1)
	go func() {
		defer server.Close()
		var got strings.Builder
		req, err := http.ReadRequest(bufio.NewReader(io.TeeReader(server, &got)))
		if err == nil {
			_, err = io.Copy(io.Discard, req.Body)
		}
		if err == nil {
			_, err = io.WriteString(server, answer)
		}
		if err != nil {
			t.Error(err)
		}
		asked <- got.String()
	}()
	srv := httptest.NewServer(New("/p", 80, func(context.Context) (net.Conn, error) { return near, nil }))
	defer srv.Close()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return <-asked, string(b)
}

// Fields that are dropped from headers are also dropped from trailers, announced or not.
func TestPortTrailersAreDropped(t *testing.T) {
	t.Parallel()
	const fields = "Set-Cookie: stolen=1\r\nClear-Site-Data: \"*\"\r\nLocation: /x\r\n\r\n"
	for name, announced := range map[string]string{
		"announced": "Trailer: Set-Cookie, Clear-Site-Data, Location\r\n", "not announced": "",
		"announced in part": "Trailer: Set-Cookie\r\n", "as a name": "Trailer: Trailer:Set-Cookie\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inside, outside := throughPort(t,
				"POST /v1/sandboxes/a/ports/80/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTE: trailers\r\n"+
					"Authorization: Bearer x\r\nTransfer-Encoding: chunked\r\nTrailer: Cookie, Authorization\r\n\r\n"+
					"4\r\nsent\r\n0\r\nCookie: ours\r\nAuthorization: Bearer y\r\n\r\n",
				"HTTP/1.1 200 OK\r\nConnection: close\r\nX-Own: kept\r\nTransfer-Encoding: chunked\r\n"+announced+
					"\r\n5\r\nhello\r\n0\r\n"+fields)
			if !strings.Contains(inside, "sent") || !strings.Contains(outside, "hello") ||
				!strings.Contains(outside, "X-Own: kept") {
				t.Errorf("the server got %q, the client %q; want sent, hello and X-Own: kept", inside, outside)
			}
			for _, field := range []string{"Cookie", "Authorization", "Trailer", "Te:"} {
				if strings.Contains(inside, field) {
					t.Errorf("the server got %q, want no %s", inside, field)
				}
			}
			for _, field := range []string{"Set-Cookie", "Clear-Site-Data", "Location", "Trailer"} {
				if strings.Contains(outside, field) {
					t.Errorf("the client got %q, want no %s", outside, field)
				}
			}
		})
	}
}
