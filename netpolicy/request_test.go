package netpolicy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// site answers by path and records the requests.
type site struct {
	*httptest.Server
	port  int
	asked chan *http.Request
}

func newSite(tb testing.TB) *site {
	tb.Helper()
	s := &site{asked: make(chan *http.Request, 100)}
	s.Server = httptest.NewServer(s)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	tb.Cleanup(s.Close)
	s.port = portOf(tb, s.Server)
	return s
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	if r.URL.Path == "/early" {
		nc, rw, _ := rc.Hijack()
		rw.WriteString("HTTP/1.1 413 Request Entity Too Large\r\nContent-Length: 2\r\n\r\nno")
		rw.Flush()
		io.Copy(io.Discard, rw.Reader)
		nc.Close()
		return
	}
	body, err := io.ReadAll(r.Body)
	note := r.Clone(r.Context())
	note.Body = io.NopCloser(bytes.NewReader(body))
	s.asked <- note
	switch {
	case err != nil:
		w.WriteHeader(http.StatusTeapot)
	case r.URL.Path == "/moved":
		http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
	case r.URL.Path == "/short":
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "half")
	case r.URL.Path == "/trailer":
		w.Header().Set("Trailer", "X-Sum")
		io.WriteString(w, "body")
		w.Header().Set("X-Sum", "7")
	case r.URL.Path == "/slow":
		io.WriteString(w, "first")
		rc.Flush()
		<-r.Context().Done()
	case r.URL.Path == "/large":
		w.Write(make([]byte, 16<<20))
	case r.URL.Path == "/cut":
		nc, rw, _ := rc.Hijack()
		rw.WriteString("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
		rw.Flush()
		nc.Close()
	case r.URL.Path == "/strange":
		nc, rw, _ := rc.Hijack()
		rw.WriteString("HTTP/1.1 200 OK\r\nno field " + r.Header.Get("Authorization") + "\r\n\r\n")
		rw.Flush()
		nc.Close()
	case r.URL.Path == "/socket":
		nc, rw, _ := rc.Hijack()
		rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + r.Header.Get("Upgrade") +
			"\r\n\r\n")
		rw.Flush()
		io.Copy(nc, rw.Reader)
		nc.Close()
	case r.URL.Path == "/echo":
		for field, values := range r.Header {
			w.Header()["Echo-"+field] = values
		}
		fmt.Fprint(w, r.Header)
	default:
		fmt.Fprintf(w, "%s %s %s", r.Method, r.URL, body)
	}
}

func TestRequestsAreForwardedUnchanged(t *testing.T) {
	s := newSite(t)
	w := newWorld(t, Options{}, SessionOptions{}, Rule{Host: "a.test", Protocol: HTTP, Ports: []int{s.port}})
	c := w.client()
	base := fmt.Sprintf("http://a.test:%d", s.port)

	req, _ := http.NewRequest(http.MethodPost, base+"/x%2Fy?q=%20;a",
		io.MultiReader(strings.NewReader("some "), strings.NewReader("body")))
	req.Header.Set("Proxy-Authorization", "Basic eDp5")
	req.Header.Set("Connection", "x-mine")
	req.Header.Set("X-Mine", "1")
	req.Header.Set("X-Yours", "2")
	req.Header.Set("User-Agent", "test")
	req.Header.Set("Expect", "100-continue")
	req.Trailer = http.Header{"X-End": {"t"}}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	if string(body) != "POST /x%2Fy?q=%20;a some body" || resp.Header.Get("Via") != "" {
		t.Errorf("answer = %q, Via %q; want the request unchanged and no Via", body, resp.Header.Get("Via"))
	}
	got := <-s.asked
	if got.Host != fmt.Sprintf("a.test:%d", s.port) || got.Header.Get("X-Yours") != "2" ||
		got.Header.Get("User-Agent") != "test" || got.Trailer.Get("X-End") != "t" {
		t.Errorf("the server got host %v, header %v, trailer %v; want port %d, X-Yours 2, User-Agent test, X-End t",
			got.Host, got.Header, got.Trailer, s.port)
	}
	for _, field := range []string{"Proxy-Authorization", "X-Mine", "X-Forwarded-For", "Proxy-Connection", "Connection"} {
		if v, ok := got.Header[field]; ok {
			t.Errorf("the server got %s: %q, want no such field", field, v)
		}
	}
	line := w.audited(1)
	if !line.Allowed || line.Method != http.MethodPost || line.Path != "/x%2Fy" || line.Sent != 9 ||
		line.Received != int64(len(body)) || line.Address != target("127.0.0.1", s.port) || line.Protocol != HTTP {
		t.Errorf("audited %+v, want an allowed POST of /x%%2Fy: 9 bytes sent, %d received", line, len(body))
	}

	if resp, err = c.Get(base + "/moved"); err != nil || resp.StatusCode != http.StatusFound ||
		resp.Header.Get("Location") != "http://169.254.169.254/" {
		t.Errorf("GET of a redirect = %v, %v; want it forwarded unchanged", resp, err)
	}
	resp.Body.Close()
	if resp, err = c.Get(base + "/trailer"); err != nil {
		t.Fatal(err)
	}
	if _, err = io.Copy(io.Discard, resp.Body); err != nil || resp.Trailer.Get("X-Sum") != "7" {
		t.Errorf("trailer = %v, %v; want X-Sum 7", resp.Trailer, err)
	}
	if resp, err = c.Head(base + "/"); err != nil || resp.ContentLength <= 0 {
		t.Errorf("HEAD = %v, %v; want a Content-Length", resp, err)
	}
	resp, err = c.Head("http://b.test/")
	if err != nil || resp.StatusCode != http.StatusForbidden {
		t.Errorf("HEAD that is refused = %v, %v; want status 403", resp, err)
	}
}

func TestWrongContentLengthEndsConnection(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := newWorld(t, Options{}, SessionOptions{}, Rule{Host: "a.test", Protocol: HTTP, Ports: []int{s.port}})
	c := w.client()
	n := 0
	for _, path := range []string{"/short", "/cut"} {
		resp, err := c.Get(fmt.Sprintf("http://a.test:%d%s", s.port, path))
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); err == nil || len(body) == 0 {
			t.Errorf("%s: body = %q, %v; want a part of it and an error", path, body, err)
		}
		resp.Body.Close()
		n++
		wantText(t, path, w.audited(n).Reason, "broke off")
	}
	resp, err := c.Get(fmt.Sprintf("http://a.test:%d/strange", s.port))
	if err != nil || resp.StatusCode != http.StatusBadGateway {
		t.Fatalf("answer to invalid HTTP = %v, %v; want status 502", resp, err)
	}
	resp.Body.Close()
	n++

	// The body is shorter than Content-Length.
	head := fmt.Sprintf(shortBody, s.port)
	nc := w.dial()
	io.WriteString(nc, head)
	closeWrite(nc)
	got, _ := io.ReadAll(nc)
	wantText(t, "short body", string(got), "HTTP/1.1 400 the request's body ended early")
	n++
	if line := w.audited(n); line.Sent != 3 {
		t.Errorf("audited %+v, want 3 bytes sent", line)
	}
	// Bytes beyond Content-Length are the next request and are checked as one.
	got = []byte(w.say(strings.Replace(head, "Content-Length: 10", "Content-Length: 1", 1) + " no request\r\n\r\n"))
	wantText(t, "long body", string(got), "HTTP/1.1 200 OK")
	wantText(t, "what follows", w.audited(n+2).Reason, "invalid request: not HTTP")
}

// shortBody is a request, for a port, with fewer bytes of body than its Content-Length.
const shortBody = "POST http://a.test:%d/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\nabc"

// The rest of a body after an early answer is not read as a request.
func TestEarlyAnswerEndsConnection(t *testing.T) {
	s := newSite(t)
	w := newWorld(t, Options{}, SessionOptions{}, Rule{Host: "a.test", Protocol: HTTP, Ports: []int{s.port}})
	nc := w.dial()
	fmt.Fprintf(nc, "POST http://a.test:%d/early HTTP/1.1\r\nHost: a.test\r\nContent-Length: 100\r\n\r\nabc", s.port)
	in := bufio.NewReader(nc)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusRequestEntityTooLarge || !resp.Close ||
		string(body) != "no" {
		t.Errorf("answer = %s, close %v, %q; want status 413, close and \"no\"", resp.Status, resp.Close, body)
	}
	w.audited(1)
	fmt.Fprintf(nc, "GET http://a.test:%d/ HTTP/1.1\r\nHost: a.test\r\n\r\n", s.port)
	closeWrite(nc)
	rest, err := io.ReadAll(in)
	if err != nil || len(rest) > 0 || len(s.asked) > 0 {
		t.Errorf("after the answer: read %q, %v, and %d requests arrived; want the end and none", rest, err, len(s.asked))
	}
}

func TestTunneledRequestsAreDecidedSeparately(t *testing.T) {
	s := newSite(t)
	w := newWorld(t, Options{}, SessionOptions{},
		Rule{Host: "a.test", Protocol: HTTP, Ports: []int{s.port}, Methods: []string{"GET"}, Paths: []string{"/open/*"}},
		Rule{Host: "b.test", Protocol: HTTP, Ports: []int{s.port}})
	for i, c := range []struct {
		head, status string
	}{
		{"GET /open/2 HTTP/1.1\r\nHost: a.test:%d\r\n", "HTTP/1.1 200"},
		{"GET /shut HTTP/1.1\r\nHost: a.test:%d\r\n", "HTTP/1.1 403 "},
		{"POST /open/2 HTTP/1.1\r\nHost: a.test:%d\r\n", "HTTP/1.1 403 "},
		{"GET /open/2 HTTP/1.1\r\nHost: b.test:%d\r\n", "HTTP/1.1 403 "},
		{"GET /open/2 HTTP/1.1\r\nHost: a.test:1%d\r\n", "HTTP/1.1 400 "},
		{"GET http://b.test:%d/ HTTP/1.1\r\nHost: a.test\r\n", "HTTP/1.1 403 "},
		{"CONNECT b.test:%d HTTP/1.1\r\nHost: a.test\r\n", "HTTP/1.1 400 "},
	} {
		nc, err := w.connect(target("a.test", s.port))
		if i%2 == 1 {
			nc, err = w.socksTo(target("a.test", s.port))
		}
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(nc)
		fmt.Fprintf(nc, "GET /open/1 HTTP/1.1\r\nHost: a.test:%d\r\n\r\n"+c.head+"\r\n", s.port, s.port)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		wantText(t, "first", string(body), "GET /open/1")
		status, _ := in.ReadString('\n')
		wantText(t, c.head, status, c.status)
		nc.Close()
	}
	close(s.asked)
	for r := range s.asked {
		if !strings.HasPrefix(r.URL.Path, "/open/") || !strings.HasPrefix(r.Host, "a.test") {
			t.Errorf("the server got %s %s, want only paths below /open/ of a.test", r.Host, r.URL)
		}
	}
}

func TestOnlyWebSocketUpgradesAreAllowed(t *testing.T) {
	s := newSite(t)
	w := newWorld(t, Options{}, SessionOptions{}, Rule{Host: "a.test", Protocol: HTTP, Ports: []int{s.port}})
	// A WebSocket request with a body is refused: the body would still be read during the takeover.
	for to, status := range map[string]string{"websocket": "101", "h2c": "502", "websocket\r\nContent-Length: 6": "502"} {
		nc := w.dial()
		fmt.Fprintf(nc, "GET http://a.test:%d/socket HTTP/1.1\r\nHost: a.test\r\nConnection: keep-alive, "+
			"Upgrade\r\nUpgrade: %s\r\n\r\nearly ", s.port, to)
		in := bufio.NewReader(nc)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		wantText(t, to, resp.Status, status)
		if asked := <-s.asked; (asked.Header.Get("Upgrade") != "") != (to == "websocket") {
			t.Errorf("%s: the server got Upgrade %q, want it only for websocket", to, asked.Header.Get("Upgrade"))
		}
		if to != "websocket" {
			continue
		}
		io.WriteString(nc, "and late")
		closeWrite(nc)
		got, err := io.ReadAll(in)
		if err != nil || string(got) != "early and late" {
			t.Errorf("echo = %q, %v; want %q", got, err, "early and late")
		}
	}
}

// askWithCredential sends a request with a credential of the sandbox's own, and returns the fields
// and the body of the answer.
func askWithCredential(t *testing.T, c *http.Client, url string) string {
	t.Helper()
	req, _ := http.NewRequest(http.MethodGet, url, nil)
	req.Header.Set("Authorization", "from inside")
	req.Header.Set("Connection", "Authorization")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	resp.Header.Write(&all)
	io.Copy(&all, resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s = %s, %s; want status 200", url, resp.Status, &all)
	}
	return all.String()
}

func TestSecretsNeverEnterSandbox(t *testing.T) {
	const value = "Bearer s3cr3t-t0ken"
	s := newSite(t)
	other, roots := secureServer(t, s)
	secret := Secret{Name: "api", Hosts: []string{"secret.test"}, Header: "Authorization", Value: value}
	ports := []int{s.port}
	w := newWorld(t, Options{Roots: roots}, SessionOptions{Secrets: []Secret{secret}},
		Rule{Host: "*", Protocol: HTTP, Ports: ports},
		Rule{Host: "secret.test", Protocol: HTTPS, Ports: []int{portOf(t, other)}})
	c := w.client()
	ask := func(url string) (string, *http.Request) {
		t.Helper()
		return askWithCredential(t, c, url), <-s.asked
	}
	text, got := ask(fmt.Sprintf("http://secret.test:%d/echo", s.port))
	if v := got.Header["Authorization"]; !slices.Equal(v, []string{value}) {
		t.Errorf("http: the server got %q, want only %q", v, value)
	}
	if strings.Contains(text, "s3cr3t") || !strings.Contains(text, "Bearer ************") {
		t.Errorf("http: the sandbox received %q, want the credential masked", text)
	}
	text, got = ask("http://secret.test/echo")
	if v := got.Header.Get("Authorization"); v != value || got.TLS == nil && got.ProtoMajor != 2 {
		t.Errorf("https: the server got %q by %s, want %q by TLS or HTTP/2", v, got.Proto, value)
	}
	if strings.Contains(text, "s3cr3t") {
		t.Errorf("https: the sandbox received %q, want no credential", text)
	}
	text, got = ask(fmt.Sprintf("http://a.test:%d/echo", s.port))
	if v := got.Header.Get("Authorization"); v != "" || strings.Contains(text, "s3cr3t") {
		t.Errorf("another host got %q and answered %q, want no credential", v, text)
	}
	text = w.say(fmt.Sprintf("GET http://secret.test:%d/strange HTTP/1.1\r\nHost: secret.test\r\n\r\n", s.port))
	if strings.Contains(text, "s3cr3t") || !strings.Contains(text, "no field Bearer ****") {
		t.Errorf("answer to invalid HTTP = %q, want the credential masked", text)
	}
	w.audited(4)
	// A tunnel ends with its credential.
	nc := w.dial()
	fmt.Fprintf(nc, "GET http://secret.test:%d/socket HTTP/1.1\r\nHost: secret.test\r\nConnection: Upgrade\r\nUpgrade: "+
		"websocket\r\n\r\n", s.port)
	in := bufio.NewReader(nc)
	if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade = %v, %v; want status 101", resp, err)
	}
	w.s.Set(w.s.rules, nil)
	if _, err := in.ReadByte(); err == nil {
		t.Error("the connection goes on without its credential, want its end")
	}
	wantText(t, "end", w.audited(5).Reason, "a change of the secrets")
	if all := fmt.Sprintf("%+v %#v", w.s.State(), w.lines); strings.Contains(all, "s3cr3t") {
		t.Errorf("state and audit = %s, want no credential", all)
	}
}

func TestMaskFindsSplitCredentials(t *testing.T) {
	const token = "abcabd-token"
	text := "x abcab abcabcabd-tokenabcabd-token, abcabd-toke"
	want := strings.ReplaceAll(text, token, strings.Repeat("*", len(token)))
	for size := 1; size < len(text); size++ {
		m := &mask{}
		m.add("Basic " + token)
		var got []byte
		for piece := range slices.Chunk([]byte(text), size) {
			got = append(got, m.body(bytes.Clone(piece), false)...)
		}
		got = append(got, m.body(nil, true)...)
		if string(got) != want {
			t.Errorf("in pieces of %d: body = %q, want %q", size, got, want)
		}
	}
}

func TestHTTPSVerifiesServers(t *testing.T) {
	srv, _ := secureServer(t, http.NotFoundHandler())
	w := newWorld(t, Options{}, SessionOptions{}, Rule{Host: "a.test", Protocol: HTTPS, Ports: []int{portOf(t, srv)}})
	got := w.say("GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n")
	wantText(t, "answer", got, "HTTP/1.1 502 ")
	wantText(t, "answer", got, "certificate signed by unknown authority")
	if line := w.audited(1); line.Received != 0 || line.Protocol != HTTPS {
		t.Errorf("audited %+v, want protocol https and nothing received", line)
	}
}
