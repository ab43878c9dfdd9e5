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
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// limitedBinary returns a program that runs the service with at most 1,024 open files.
func limitedBinary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "orchestrator")
	script := fmt.Sprintf("#!/bin/sh\nulimit -n 1024\nexec %q \"$@\"\n", harness.Need(t, harness.EnvBin))
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil { // the test executes it
		t.Fatal(err)
	}
	return path
}

// openEventStream requests the stream of events on a separate connection, with one header field.
// The caller closes the connection.
func openEventStream(t *testing.T, s *harness.Server, header ...string) (*http.Response, net.Conn) {
	t.Helper()
	conn, err := net.Dial("unix", s.Socket())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(harness.Long)); err != nil {
		t.Fatal(err)
	}
	head := fmt.Sprintf("GET /v1/events?follow=true HTTP/1.1\r\nHost: orchestrator\r\n%s: %s\r\n\r\n",
		header[0], header[1])
	if _, err := io.WriteString(conn, head); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("no answer to the request for events: %v", err)
	}
	return res, conn
}

// TestOneCallerCannotExhaustConnections opens as many streams as one caller gets, and keeps asking
// for more. Another caller's calls must succeed, and an operator must be able to revoke the token
// and stop the service.
func TestOneCallerCannotExhaustConnections(t *testing.T) {
	t.Parallel()
	const config = `
templates:
  default:
    limits: {memory: 128MiB, pids: 100, open_files: 512}
    pool: {min: 0, max: 4, rate: 10, parallel: 2}
`
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: config, Seed: &seed, Bin: limitedBinary(t)})
	tok, err := s.Client.Tokens.Create(within(t), v1.TokenRequest{Caller: "eve", Trust: 1})
	if err != nil {
		t.Fatal(err)
	}
	eve := []string{"Authorization", "Bearer " + tok.Secret}
	bob := token(t, s, v1.TokenRequest{Caller: "bob", Trust: 3})
	open := 0
	for i := range 600 {
		res, conn := openEventStream(t, s, eve...) // closing the connection ends it
		if res.StatusCode == http.StatusOK {
			open++
			defer conn.Close()
			continue
		}
		var p v1.Problem
		err := json.NewDecoder(res.Body).Decode(&p)
		refused := res.StatusCode == http.StatusTooManyRequests && res.Header.Get("Retry-After") != ""
		if err != nil || !refused || !strings.Contains(p.Detail, "callers.max_") {
			t.Fatalf("stream %d: status %d, header %v, problem %+v, %v; want 429 with Retry-After and the limit's name",
				i, res.StatusCode, res.Header, p, err)
		}
		conn.Close()
	}
	if open == 0 || open > 64 {
		t.Errorf("%d of 600 streams are open, want 1 to 64", open)
	}
	// After the revocation the flood has no caller. It must leave room in that share: 1,024 files are
	// 32 connections without a caller.
	defer floodEventStreams(s, eve, 24)()
	for range 3 {
		got, err := bob.Tools.Call(within(t), "system.bash",
			v1.ToolCall{Input: input(t, map[string]any{"command": "echo fine"})}, client.CallOptions{})
		if err != nil || got.Ending != "exited" {
			t.Errorf("system.bash of another caller = %+v, %v; want exited", got, err)
		}
	}
	s.CLI(t, "token", "revoke", tok.ID).Is(t, 0, "")
	res, conn := openEventStream(t, s, eve...) // closing the connection ends it
	conn.Close()
	if res.StatusCode != http.StatusUnauthorized {
		t.Errorf("stream with the revoked token: status %d, want 401", res.StatusCode)
	}
	s.CLI(t, "down").Is(t, 0, "")
	if state := s.Ended(); !state.Success() {
		t.Errorf("after down the service ended with %v, want success", state)
	}
}

// floodEventStreams has clients ask for streams one after the other, until stop is called.
func floodEventStreams(s *harness.Server, header []string, clients int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				conn, err := new(net.Dialer).DialContext(ctx, "unix", s.Socket())
				if err != nil { // the service is down
					return
				}
				end := context.AfterFunc(ctx, func() { conn.Close() })
				fmt.Fprintf(conn, "GET /v1/events?follow=true HTTP/1.1\r\nHost: orchestrator\r\n%s: %s\r\n\r\n",
					header[0], header[1])
				_, _ = bufio.NewReader(conn).ReadString('\n')
				end()
				conn.Close()
			}
		})
	}
	return func() { cancel(); all.Wait() }
}
