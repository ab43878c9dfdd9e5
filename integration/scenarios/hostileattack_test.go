//go:build integration

package scenarios

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	osexec "os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// Environment of the process that attacks.
const (
	attackSocket = "ORCHESTRATOR_ATTACK_SOCKET"
	attackSecret = "ORCHESTRATOR_ATTACK_SECRET"
)

// attackProcess is a process of the hostile caller. Its priority is lower than that of the service:
// a caller's own programs do not run on the service's processors, so what they take there must not
// count as a cost of the attack.
type attackProcess struct {
	cmd    *osexec.Cmd
	stdin  io.Closer // the process stops when it is closed
	stdout bytes.Buffer
}

func startAttack(t *testing.T, socket, secret string) *attackProcess {
	t.Helper()
	p := &attackProcess{cmd: osexec.Command("nice", "-n", "10", os.Args[0], "-test.run", "^TestHostileCaller$")}
	p.cmd.Env = append(os.Environ(), attackSocket+"="+socket, attackSecret+"="+secret)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, os.Stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close(); p.cmd.Process.Kill(); p.cmd.Wait() })
	return p
}

// stop ends the attack, and fails the test unless every kind of it was answered as it must be.
func (p *attackProcess) stop(t *testing.T) {
	t.Helper()
	p.stdin.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Fatalf("the attacking process: %v\n%s", err, &p.stdout)
	}
	var counts map[string]map[int]int
	if err := json.NewDecoder(&p.stdout).Decode(&counts); err != nil {
		t.Fatalf("counts of the attacking process: %v", err)
	}
	checkAnswers(t, counts)
}

// attackUntilStopped attacks until stdin is closed, and writes the counts of answers to stdout.
func attackUntilStopped(t *testing.T, socket, secret string) {
	t.Helper()
	a := newAttack(socket, secret)
	a.begin()
	io.Copy(io.Discard, os.Stdin) // any end of stdin stops the attack
	a.end()
	if err := json.NewEncoder(os.Stdout).Encode(a.counts); err != nil {
		t.Fatal(err)
	}
}

// attack is everything that the hostile caller does.
type attack struct {
	socket string
	secret string
	http   *http.Client
	ctx    context.Context
	cancel context.CancelFunc
	all    sync.WaitGroup

	mu     sync.Mutex
	counts map[string]map[int]int // answers by kind and status
	failed sync.Once
	begun  map[string]chan struct{} // by kind; closed by the first answer with status 200
}

func newAttack(socket, secret string) *attack {
	ctx, cancel := context.WithCancel(context.Background())
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &attack{
		socket: socket, secret: secret, ctx: ctx, cancel: cancel, counts: map[string]map[int]int{},
		begun: map[string]chan struct{}{"leave": make(chan struct{}), "unread answer": make(chan struct{}),
			"unread events": make(chan struct{})},
		http: &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 16}},
	}
}

// begin starts all attacks at once.
func (a *attack) begin() {
	poison := map[string]string{
		"A_TOKEN": "redacted",
		"B_TOKEN": `{"comm`,
		"C_TOKEN": "victimsecret123",
		"D_TOKEN": "command",
		"E_TOKEN": "system.bash",
		"F_TOKEN": "prefix",
	}
	a.repeat("lease", 1, func() (int, error) { return a.post("/v1/sandboxes", map[string]any{"env": poison}) })
	many := map[string]string{}
	for i := range 10_000 {
		many[fmt.Sprint("TOKEN", i)] = fmt.Sprint("prefix-prefix-prefix", i)
	}
	a.repeat("variables", 2, func() (int, error) {
		return a.post("/v1/tools/system.bash/call", map[string]any{"input": map[string]any{"command": "true", "env": many}})
	})
	a.repeat("refused", 8, func() (int, error) {
		return a.post(
			"/v1/tools/no.such/call",
			map[string]any{"input": map[string]any{"command": strings.Repeat("x", 8<<10)}},
		)
	})
	a.repeat("credentials", 2, a.wrongCredentials())
	a.repeat("batch", 1, func() (int, error) { return a.batch(64) })
	a.repeat("long batch", 1, func() (int, error) { return a.batch(200) })
	a.repeat("leave", 1, a.leave)
	a.repeat("unread answer", 2, func() (int, error) { return a.unread("/exec", unreadExec) })
	a.repeat("unread events", 2, a.unreadEvents)
	a.all.Go(func() {
		for _, begun := range a.begun {
			select {
			case <-begun:
			case <-a.ctx.Done():
			}
		}
		a.holdAll()
	})
}

// holdAll holds bodies and streams. Afterwards the caller's requests with a body are mostly
// refused.
func (a *attack) holdAll() {
	const body = 32<<20 - 1
	a.repeat("body", 60, func() (int, error) {
		return a.hold(
			fmt.Sprintf(
				"POST /v1/run HTTP/1.1\r\nHost: o\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
				a.secret,
				body+1,
			),
			body,
		)
	})
	a.repeat("stream", 600, func() (int, error) {
		return a.hold(
			fmt.Sprintf("GET /v1/events?follow=true HTTP/1.1\r\nHost: o\r\nAuthorization: Bearer %s\r\n\r\n", a.secret),
			0,
		)
	})
}

// end stops all attacks and closes their connections.
func (a *attack) end() {
	a.cancel()
	a.all.Wait()
	a.http.CloseIdleConnections()
}

// repeat has so many clients attack again and again, and counts the answers. After 429 or an error
// a client waits, except for calls that are refused as fast as the service answers.
func (a *attack) repeat(kind string, clients int, once func() (status int, err error)) {
	for range clients {
		a.all.Go(func() {
			for a.ctx.Err() == nil {
				status, err := once()
				if err == nil {
					a.count(kind, status)
				}
				if kind != "refused" && (err != nil || status == http.StatusTooManyRequests) {
					select {
					case <-time.After(retryPause):
					case <-a.ctx.Done():
					}
				}
			}
		})
	}
}

// noteFailure shows the first answer with an error of the service.
func (a *attack) noteFailure(kind, answer string) {
	a.failed.Do(func() { fmt.Fprintf(os.Stderr, "attack %s was answered: %s\n", kind, answer) })
}

func (a *attack) count(kind string, status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.counts[kind] == nil {
		a.counts[kind] = map[int]int{}
	}
	a.counts[kind][status]++
	if begun := a.begun[kind]; begun != nil && status == http.StatusOK && a.counts[kind][status] == 1 {
		close(begun)
	}
}

// expectedAnswers has statuses that each kind of attack must be answered with at least once.
var expectedAnswers = map[string][]int{
	"lease":         {http.StatusCreated, http.StatusTooManyRequests},
	"variables":     {http.StatusBadRequest},
	"refused":       {http.StatusNotFound},
	"credentials":   {http.StatusUnauthorized},
	"batch":         {http.StatusOK},
	"long batch":    {http.StatusBadRequest},
	"leave":         {http.StatusOK},
	"unread answer": {http.StatusOK},
	"unread events": {http.StatusOK},
	"body":          {http.StatusTooManyRequests},
	"stream":        {http.StatusOK, http.StatusTooManyRequests},
}

// checkAnswers fails unless every kind of attack got the answers that it must, and none an error of
// the service. counts has the number of answers by kind and status.
func checkAnswers(t *testing.T, counts map[string]map[int]int) {
	t.Helper()
	for kind, want := range expectedAnswers {
		t.Logf("attack %s: answers by status %v", kind, counts[kind])
		for _, status := range want {
			if counts[kind][status] == 0 {
				t.Errorf("attack %s: 0 answers with status %d, want at least one", kind, status)
			}
		}
		for status, n := range counts[kind] {
			if status >= 500 {
				t.Errorf("attack %s: %d answers with status %d, want none of 500 or more", kind, n, status)
			}
		}
	}
	if n := counts["credentials"]; len(n) != 1 || n[http.StatusUnauthorized] == 0 {
		t.Errorf("wrong credentials: answers by status %v, want 401 alone", n)
	}
}

func (a *attack) send(method, path string, body []byte, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(a.ctx, method, "http://o"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	res, err := a.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res, err
}

// post sends JSON with the hostile caller's token.
func (a *attack) post(path string, body any) (int, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	res, err := a.send("POST", path, b, "Authorization", "Bearer "+a.secret)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, nil
}

// wrongCredentials returns a function that sends one wrong form of Authorization after the other.
func (a *attack) wrongCredentials() func() (int, error) {
	forms := []string{
		"bearer",
		"Basic " + a.secret,
		"Bearer " + a.secret + " x",
		"Bearer wrong",
		a.secret,
		"Bearer,Bearer " + a.secret,
	}
	next := make(chan string)
	a.all.Go(func() {
		for i := 0; ; i++ {
			select {
			case next <- forms[i%len(forms)]:
			case <-a.ctx.Done():
				return
			}
		}
	})
	return func() (int, error) {
		select {
		case form := <-next:
			res, err := a.send("GET", "/v1/sandboxes", nil, "Authorization", form)
			if err != nil {
				return 0, err
			}
			return res.StatusCode, nil
		case <-a.ctx.Done():
			return 0, a.ctx.Err()
		}
	}
}

// hold sends a request's head and as many bytes of its body, and reads the answer until the service
// closes the connection or the attack ends.
func (a *attack) hold(head string, body int) (int, error) {
	conn, err := new(net.Dialer).DialContext(a.ctx, "unix", a.socket)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(a.ctx, func() { conn.Close() })()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if _, err := io.WriteString(conn, head); err != nil {
			return // it was refused
		}
		piece := bytes.Repeat([]byte(" "), 64<<10)
		for left := body; left > 0; {
			n, err := conn.Write(piece[:min(left, len(piece))])
			if err != nil {
				return
			}
			left -= n
		}
	}()
	defer func() { conn.Close(); <-sent }()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		a.count("stream", res.StatusCode) // it lasts, so it is counted before it ends
		_, _ = io.Copy(io.Discard, res.Body)
		return 0, io.EOF
	}
	return res.StatusCode, nil
}
