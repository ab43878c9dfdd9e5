package netpolicy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// hostileEcho answers with raw text in which TOKEN is replaced by the received credential.
func hostileEcho(t *testing.T, answers map[string]string) int {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		nc, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer nc.Close()
		_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		fmt.Fprint(nc, strings.ReplaceAll(answers[r.URL.Path], "TOKEN", token))
	}))
	t.Cleanup(srv.Close)
	return portOf(t, srv)
}

func TestMaskHidesCredentialsInWholeAnswer(t *testing.T) {
	for _, token := range []string{"s3cr3T-t0ken", "s3cr3t!t0kEn", `s3cr3t"t0\ken`} {
		t.Run(token, func(t *testing.T) {
			const chunked = "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
			answers := map[string]string{
				"/value":         "HTTP/1.1 200 OK\r\nConnection: close\r\nX: TOKEN\r\n\r\n",
				"/name":          "HTTP/1.1 200 OK\r\nConnection: close\r\nTOKEN: v\r\nX-TOKEN-y: v\r\n\r\n",
				"/listed":        "HTTP/1.1 200 OK\r\nConnection: close, TOKEN\r\nTOKEN: v\r\n\r\n",
				"/status":        "HTTP/1.1 200 TOKEN\r\nConnection: close\r\n\r\n",
				"/code":          "HTTP/1.1 TOKEN OK\r\n\r\n",
				"/version":       "TOKEN 200 OK\r\n\r\n",
				"/length":        "HTTP/1.1 200 OK\r\nContent-Length: TOKEN\r\n\r\n",
				"/coding":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: TOKEN\r\n\r\n",
				"/informational": "HTTP/1.1 103 TOKEN\r\nTOKEN: TOKEN\r\n\r\nHTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
				"/extension":     chunked + "\r\n5;TOKEN=TOKEN\r\nhello\r\n0;TOKEN\r\n\r\n",
				"/trailer":       chunked + "Trailer: TOKEN\r\n\r\n5\r\nhello\r\n0\r\nTOKEN: TOKEN\r\n\r\n",
				"/trailers":      chunked + "\r\n5\r\nhello\r\n0\r\nX: TOKEN\r\nX-TOKEN: v\r\n\r\n",
				"/chunk":         chunked + "\r\nTOKEN\r\nhello\r\n",
				"/socket":        "HTTP/1.1 101 TOKEN\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nTOKEN: TOKEN\r\n\r\n",
			}
			port := hostileEcho(t, answers)
			secret := Secret{Name: "api", Hosts: []string{"secret.test"}, Header: "Authorization", Value: "Bearer " + token}
			w := newWorld(t, Options{}, SessionOptions{Secrets: []Secret{secret}},
				Rule{Host: "*", Protocol: HTTP, Ports: []int{port}})
			n := 0
			for path := range answers {
				more := "Connection: close\r\n"
				if path == "/socket" {
					more = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
				}
				nc := w.dial()
				fmt.Fprintf(nc, "GET http://secret.test:%d%s HTTP/1.1\r\nHost: secret.test\r\n%s\r\n", port, path, more)
				b, _ := io.ReadAll(nc)
				nc.Close()
				got := string(b)
				if !strings.HasPrefix(got, "HTTP/1.1 ") && path != "/chunk" || holds(got, token) {
					t.Errorf("GET %s: the sandbox received %q, want an HTTP answer without the credential", path, got)
				}
				n++
				if line := fmt.Sprintf("%+v", w.audited(n)); holds(line, token) {
					t.Errorf("GET %s: audited %s, want no credential", path, line)
				}
			}
		})
	}
}

// holds reports whether a text contains a credential, in any case, as it is or escaped.
func holds(text, token string) bool {
	plain := strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(text)
	low := strings.ToLower(token)
	return strings.Contains(strings.ToLower(text), low) || strings.Contains(strings.ToLower(plain), low)
}

func TestMaskKeepsOtherTrailers(t *testing.T) {
	port := hostileEcho(t, map[string]string{"/": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-TOKEN, " +
		"X-Sum\r\n\r\n5\r\nhello\r\n0\r\nX-TOKEN: TOKEN\r\nX-Sum: 7\r\nOrchestrator-Refusal: denied\r\n\r\n"})
	secret := Secret{Name: "api", Hosts: []string{"secret.test"}, Header: "Authorization", Value: "Bearer s3cr3t-t0ken"}
	w := newWorld(t, Options{}, SessionOptions{Secrets: []Secret{secret}},
		Rule{Host: "*", Protocol: HTTP, Ports: []int{port}})
	got := w.say(fmt.Sprintf("GET http://secret.test:%d/ HTTP/1.1\r\nHost: secret.test\r\nConnection: close\r\n\r\n",
		port))
	res, err := http.ReadResponse(bufio.NewReader(strings.NewReader(got)), nil)
	if err != nil {
		t.Fatal(err)
	}
	var body strings.Builder
	if _, err := bufio.NewReader(res.Body).WriteTo(&body); err != nil {
		t.Fatal(err)
	}
	stars := strings.Repeat("*", len("s3cr3t-t0ken"))
	if body.String() != "hello" || res.Trailer.Get("X-Sum") != "7" || res.Trailer.Get("X-"+stars) != stars ||
		res.Trailer.Get(RefusalHeader) != "" {
		t.Errorf("answer %q, trailer %v; want the body hello, X-Sum 7, a masked name and no refusal", got, res.Trailer)
	}
}
