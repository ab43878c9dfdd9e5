//go:build integration

package scenarios

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

const (
	// slowPiece bytes are what a client that hardly reads accepts every slowPause, so that the service
	// does not disconnect it.
	slowPiece = 64 << 10
	slowPause = 4900 * time.Millisecond
	// printMarkup prints 512 KiB of a character that JSON escapes with six.
	printMarkup = "head -c 262144 /dev/zero | tr '\\0' '<' | tee /dev/stderr"
)

// unreadExec is a command whose answer as JSON is six times its output.
var unreadExec = map[string]any{"command": printMarkup, "max_output_bytes": 256 << 10}

// begunSession begins a session of the Model Context Protocol and returns its header, or the status
// of the refusal.
func (a *attack) begunSession(revision string) (header []string, status int, err error) {
	header = []string{"Authorization", "Bearer " + a.secret, "Accept", "application/json, text/event-stream"}
	begin := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"` + revision + `",` +
		`"capabilities":{},"clientInfo":{"name":"mallory","version":"1"}}}`
	res, err := a.send("POST", "/mcp", []byte(begin), header...)
	if err != nil || res.StatusCode != http.StatusOK {
		if err == nil {
			status = res.StatusCode
		}
		return nil, status, err
	}
	return append(header, "Mcp-Session-Id", res.Header.Get("Mcp-Session-Id"), "Mcp-Protocol-Version", revision), 0, nil
}

// batch begins a session and sends a batch of calls in it.
func (a *attack) batch(n int) (int, error) {
	header, status, err := a.begunSession("2025-03-26")
	if header == nil {
		return status, err
	}
	calls := make([]string, 0, n)
	for i := range n {
		calls = append(calls, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call",`+
			`"params":{"name":"no_such","arguments":{"command":"true"}}}`, i+2))
	}
	res, err := a.send("POST", "/mcp", []byte("["+strings.Join(calls, ",")+"]"), header...)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, nil
}

// leave sends calls that last, and disconnects from each.
func (a *attack) leave() (int, error) {
	header, status, err := a.begunSession("2025-11-25")
	if header == nil {
		return status, err
	}
	text := strings.Repeat("x", 4<<10)
	for i := 0; a.ctx.Err() == nil; i++ {
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"system_bash",`+
			`"arguments":{"command":"sleep 60","env":{"X":"%s"}}}}`, i+2, text)
		var head strings.Builder
		for j := 0; j < len(header); j += 2 {
			head.WriteString(header[j] + ": " + header[j+1] + "\r\n")
		}
		res, conn, err := a.ask("POST /mcp", head.String(), body)
		if err != nil {
			return 0, err
		}
		conn.Close()
		if a.count("leave", res.StatusCode); res.StatusCode != http.StatusOK {
			return 0, io.EOF
		}
	}
	return 0, a.ctx.Err()
}

// unread sends a request about one of the caller's sandboxes, and hardly reads the answer.
func (a *attack) unread(path string, body any) (int, error) {
	all, err := a.sandboxes()
	if err != nil {
		return 0, err
	}
	if len(all) == 0 {
		return 0, io.EOF
	}
	return a.readSlowly("unread answer", "POST /v1/sandboxes/"+all[0].ID+path, formOf("application/json", a.secret), body)
}

// unreadEvents makes a streamed call with much output, and hardly reads its events.
func (a *attack) unreadEvents() (int, error) {
	all, err := a.sandboxes()
	if err != nil {
		return 0, err
	}
	if len(all) == 0 {
		return 0, io.EOF
	}
	return a.readSlowly("unread events", "POST /v1/tools/system.bash/call", formOf("text/event-stream", a.secret),
		map[string]any{"sandbox": all[0].ID, "input": map[string]any{"command": printMarkup}})
}

func formOf(accept, secret string) string {
	return "Authorization: Bearer " + secret + "\r\nAccept: " + accept + "\r\n"
}

// sandboxes returns the sandboxes that the hostile caller has leased itself.
func (a *attack) sandboxes() ([]v1.Sandbox, error) {
	req, err := http.NewRequestWithContext(a.ctx, http.MethodGet, "http://o/v1/sandboxes", http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+a.secret)
	res, err := a.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var list v1.List[v1.Sandbox]
	err = json.NewDecoder(res.Body).Decode(&list)
	// The attack that leaves calls may fill the sandbox of its session.
	return slices.DeleteFunc(list.Items, func(sb v1.Sandbox) bool { return sb.Session != "" }), err
}

// readSlowly sends a request and reads its answer as slowly as the service allows, until the attack
// ends. It counts the answer when it begins.
func (a *attack) readSlowly(kind, request, head string, body any) (int, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	res, conn, err := a.ask(request, head, string(b))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(a.ctx, func() { conn.Close() })()
	if res.StatusCode != http.StatusOK {
		if res.StatusCode >= http.StatusInternalServerError {
			text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
			a.noteFailure(kind, string(text))
		}
		return res.StatusCode, nil
	}
	a.count(kind, res.StatusCode)
	for {
		if _, err := io.CopyN(io.Discard, res.Body, slowPiece); err != nil {
			return 0, err
		}
		select {
		case <-time.After(slowPause):
		case <-a.ctx.Done():
			return 0, a.ctx.Err()
		}
	}
}

// ask sends a request on a connection of its own, and returns when its answer begins.
func (a *attack) ask(request, head, body string) (*http.Response, net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(a.ctx, "unix", a.socket)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(a.ctx, func() { conn.Close() })
	defer stop()
	_, err = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: o\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n%s",
		request, len(body), head, body)
	var res *http.Response
	if err == nil {
		res, err = http.ReadResponse(bufio.NewReaderSize(conn, slowPiece), nil)
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return res, conn, nil
}
