//go:build integration

package scenarios

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
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

// fewFiles is a program that may open 1,024 files and runs the service.
func fewFiles(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "orchestrator")
	script := fmt.Sprintf("#!/bin/sh\nulimit -n 1024\nexec %q \"$@\"\n", harness.Need(t, harness.EnvBin))
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	return path
}

// follow opens a stream of events over a connection of its own and returns the
// answer's head.
func follow(t *testing.T, s *harness.Server, header ...string) (*http.Response, net.Conn) {
	t.Helper()
	conn, err := net.Dial("unix", s.Socket())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(harness.Long)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "GET /v1/events?follow=true HTTP/1.1\r\nHost: orchestrator\r\n%s: %s\r\n\r\n", header[0], header[1]); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("the stream is not answered: %v", err)
	}
	return res, conn
}

// One caller opens as many streams as it can get, and goes on doing so. Another
// caller's calls go on, and an operator revokes the token and takes the service
// down.
func TestOneCallerCannotExhaustConnections(t *testing.T) {
	t.Parallel()
	const config = `
templates:
  default:
    limits: {memory: 128MiB, pids: 100, open_files: 512}
    pool: {min: 0, max: 4, rate: 10, parallel: 2}
`
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: config, Seed: &seed, Bin: fewFiles(t)})
	tok, err := s.Client.CreateToken(within(t), v1.TokenRequest{Caller: "eve", Trust: 1})
	if err != nil {
		t.Fatal(err)
	}
	eve := []string{"Authorization", "Bearer " + tok.Secret}
	bob := token(t, s, v1.TokenRequest{Caller: "bob", Trust: 3})
	open := 0
	for i := range 600 {
		res, conn := follow(t, s, eve...)
		if res.StatusCode == http.StatusOK {
			open++
			defer conn.Close()
			continue
		}
		var p v1.Problem
		if err := json.NewDecoder(res.Body).Decode(&p); err != nil || res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Retry-After") == "" || !strings.Contains(p.Detail, "callers.max_") {
			t.Fatalf("stream %d: %d %v %+v %v", i, res.StatusCode, res.Header, p, err)
		}
		conn.Close()
	}
	if open == 0 || open > 64 {
		t.Errorf("%d of 600 streams are open, want a share of the service's connections", open)
	}
	defer flood(s, eve, 32)()
	for range 3 {
		got, err := bob.CallTool(within(t), "system.bash", v1.ToolCall{Input: input(t, map[string]any{"command": "echo fine"})}, client.CallOptions{})
		if err != nil || got.Ending != "exited" {
			t.Errorf("a call of another caller: %+v %v", got, err)
		}
	}
	s.CLI(t, "token", "revoke", tok.ID).Is(t, 0, "")
	if res, conn := follow(t, s, eve...); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("with the revoked token: %d", res.StatusCode)
	} else {
		conn.Close()
	}
	s.CLI(t, "down").Is(t, 0, "")
	if state := s.Ended(); !state.Success() {
		t.Errorf("the service ended with %v", state)
	}
}

// flood has many clients ask for streams, one after the other, until the
// function that it returns is called.
func flood(s *harness.Server, header []string, clients int) (stop func()) {
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
				fmt.Fprintf(conn, "GET /v1/events?follow=true HTTP/1.1\r\nHost: orchestrator\r\n%s: %s\r\n\r\n", header[0], header[1])
				_, _ = bufio.NewReader(conn).ReadString('\n')
				end()
				conn.Close()
			}
		})
	}
	return func() { cancel(); all.Wait() }
}
