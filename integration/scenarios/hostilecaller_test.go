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
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

const (
	attackTime = 20 * time.Second
	// steadyPace is the time from one call of the other caller to the next.
	steadyPace = 100 * time.Millisecond
	// steadyTimeout is the most that one of these calls may take.
	steadyTimeout = 30 * time.Second
	// attackMemory is the most that the service may have had resident, in bytes.
	attackMemory   = 300_000_000
	maxMedianRatio = 4
	// retryPause is how long attacks that were refused with Retry-After wait.
	retryPause = time.Second
)

// One caller does at once everything that could harm others: it poisons the redactor, sends requests
// with too many variables, holds bodies, opens streams, makes calls that are refused, sends wrong
// credentials and batches. The calls of another caller go on, and their records are what they were.
// An operator revokes the token, and nothing of the hostile caller is left.
func TestHostileCaller(t *testing.T) { //nolint:tparallel // it measures latencies
	if socket := os.Getenv(attackSocket); socket != "" {
		attackUntilStopped(t, socket, os.Getenv(attackSecret))
		return
	}
	on(t, []string{"oci"}, func(t *testing.T, runtime string) {
		const config = "leases: {idle: 15s}\n" + onDemand
		s := harness.Run(t, harness.Options{Runtime: runtime, Config: config, Seed: &seed})
		tok, err := s.Client.Tokens.Create(
			within(t),
			v1.TokenRequest{Caller: "mallory", Trust: 3, Quotas: v1.Quotas{Sandboxes: 2, Calls: 5000}},
		)
		if err != nil {
			t.Fatal(err)
		}
		bob := &steadyCaller{client: token(t, s, v1.TokenRequest{Caller: "bob", Trust: 3})}
		bob.call(t) // it leases the session's sandbox
		before := bob.during(t, attackTime/2)

		attack := startAttack(t, s.Socket(), tok.Secret)
		under := bob.during(t, attackTime)
		revoked, err := s.Client.Tokens.Revoke(within(t), tok.ID)
		if err != nil || revoked.RevokedAt.IsZero() {
			t.Errorf("RevokeToken = %+v, %v", revoked, err)
		}
		if got := s.Ask(t, "GET", "/v1/sandboxes", "", "Authorization", "Bearer "+tok.Secret); got.Status != http.StatusUnauthorized {
			t.Errorf("GET /v1/sandboxes with the revoked token: status %d, want 401", got.Status)
		}
		attack.stop(t)
		report(t, before, under)
		if got := harness.PeakMemory(t, s.Pid()); got > attackMemory {
			t.Errorf("the service had %d MB resident, want at most %d MB", got/1e6, attackMemory/1_000_000)
		} else {
			t.Logf("the service had %d MB resident at most", got/1_000_000)
		}
		bob.hasRecords(t, s)
		harness.Eventually(t, harness.Long, "the hostile caller's sandboxes end", func() bool {
			all, err := s.Client.AllSandboxes(within(t))
			return err == nil && !slices.ContainsFunc(all, func(b v1.Sandbox) bool { return b.Caller == "mallory" })
		})
		s.CLI(t, "audit", "verify").Is(t, 0, "")
	})
}

// steadyCaller makes governed calls in one session.
type steadyCaller struct {
	client *client.Client
	calls  int
}

// command is what the nth call runs. It contains what the hostile caller has in its variables.
func (c *steadyCaller) command(n int) string {
	return fmt.Sprintf("echo steady-%d redacted victimsecret123 prefix", n)
}

// call makes the next call, fails the test unless it succeeds, and returns its duration.
func (c *steadyCaller) call(t *testing.T) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), steadyTimeout)
	defer cancel()
	command := c.command(c.calls)
	c.calls++
	began := time.Now()
	got, err := c.client.Tools.Call(
		ctx,
		"system.bash",
		v1.ToolCall{Session: "steady", Input: input(t, map[string]any{"command": command})},
		client.CallOptions{},
	)
	took := time.Since(began)
	if err != nil || got.Ending != "exited" || got.ExitCode == nil || *got.ExitCode != 0 ||
		!strings.Contains(string(got.Output), command[len("echo "):]) {
		t.Errorf("call %d after %v: %+v %s, %v", c.calls-1, took, got, got.Output, err)
	}
	return took
}

// during makes calls at a steady pace for a time, and returns their durations in ascending order.
func (c *steadyCaller) during(t *testing.T, d time.Duration) []time.Duration {
	t.Helper()
	var took []time.Duration
	pace := time.NewTicker(steadyPace)
	defer pace.Stop()
	for until := time.Now().Add(d); time.Now().Before(until); {
		took = append(took, c.call(t))
		<-pace.C
	}
	slices.Sort(took)
	return took
}

// hasRecords fails unless every call has its two records, with the command as it was sent.
func (c *steadyCaller) hasRecords(t *testing.T, s *harness.Server) {
	t.Helper()
	records, err := s.Client.Audit.Records(
		within(t),
		client.AuditFilter{Caller: "bob", Action: "system.bash", Limit: 10_000},
	)
	if err != nil || len(records) != 2*c.calls {
		t.Fatalf("%d records of %d calls, %v", len(records), c.calls, err)
	}
	opened := 0
	for _, r := range records {
		switch r.Kind {
		case "open":
			if want := string(input(t, map[string]any{"command": c.command(opened)})); string(r.Input) != want {
				t.Errorf("record %d has input %s, want %s", r.Seq, r.Input, want)
			}
			opened++
		case "close":
			if r.Ending != "exited" {
				t.Errorf("record %d has ending %q, want exited", r.Seq, r.Ending)
			}
		default:
			t.Errorf("record %d is of kind %q", r.Seq, r.Kind)
		}
	}
	if opened != c.calls {
		t.Errorf("%d opening records, want %d", opened, c.calls)
	}
}

// report logs both distributions and their ratios. The median is about what it was before. It may be
// maxMedianRatio times that: other programs of the machine may take its processors meanwhile.
func report(t *testing.T, before, under []time.Duration) {
	t.Helper()
	at := func(d []time.Duration, percent int) time.Duration { return d[(len(d)-1)*percent/100] }
	ratio := func(percent int) float64 { return float64(at(under, percent)) / float64(at(before, percent)) }
	t.Logf("before the attack: %d calls, p50 %v, p99 %v", len(before), at(before, 50), at(before, 99))
	t.Logf(
		"under attack: %d calls, p50 %v (%.1f times), p99 %v (%.1f times), longest %v",
		len(under),
		at(under, 50),
		ratio(50),
		at(under, 99),
		ratio(99),
		under[len(under)-1],
	)
	if ratio(50) > maxMedianRatio {
		t.Errorf("p50 under attack is %.1f times that before, want at most %d", ratio(50), maxMedianRatio)
	}
}

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
	t.Cleanup(func() { stdin.Close(); p.cmd.Process.Kill(); p.cmd.Wait() }) //nolint:errcheck // it has usually ended
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
	io.Copy(io.Discard, os.Stdin) //nolint:errcheck // any end of stdin stops the attack
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
}

func newAttack(socket, secret string) *attack {
	ctx, cancel := context.WithCancel(context.Background())
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &attack{
		socket: socket, secret: secret, ctx: ctx, cancel: cancel, counts: map[string]map[int]int{},
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
	a.repeat("batch", 2, a.batch)
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

// repeat has so many clients attack again and again, and counts the answers. After 429 or an error a
// client waits, except for calls that are refused as fast as the service answers.
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

func (a *attack) count(kind string, status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.counts[kind] == nil {
		a.counts[kind] = map[int]int{}
	}
	a.counts[kind][status]++
}

// checkAnswers fails unless every kind of attack was answered, and none with an error of the
// service. counts has the number of answers by kind and status.
func checkAnswers(t *testing.T, counts map[string]map[int]int) {
	t.Helper()
	for _, kind := range []string{"lease", "variables", "refused", "credentials", "batch", "body", "stream"} {
		t.Logf("attack %s: answers by status %v", kind, counts[kind])
		if len(counts[kind]) == 0 {
			t.Errorf("attack %s was never answered", kind)
		}
		for status, n := range counts[kind] {
			if status >= 500 {
				t.Errorf("attack %s: %d answers with status %d", kind, n, status)
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

// batch begins a session of the Model Context Protocol and sends a batch of 200 calls in it.
func (a *attack) batch() (int, error) {
	header := []string{"Authorization", "Bearer " + a.secret, "Accept", "application/json, text/event-stream"}
	begin := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26",` +
		`"capabilities":{},"clientInfo":{"name":"mallory","version":"1"}}}`
	res, err := a.send("POST", "/mcp", []byte(begin), header...)
	if err != nil {
		return 0, err
	}
	if res.StatusCode != http.StatusOK {
		return res.StatusCode, nil
	}
	var calls []string
	for i := range 200 {
		calls = append(
			calls,
			fmt.Sprintf(
				`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"no_such","arguments":{"command":"true"}}}`,
				i+2,
			),
		)
	}
	res, err = a.send(
		"POST",
		"/mcp",
		[]byte("["+strings.Join(calls, ",")+"]"),
		append(header, "Mcp-Session-Id", res.Header.Get("Mcp-Session-Id"))...)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, nil
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
