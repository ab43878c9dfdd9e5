package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"io"
	"os"
	"testing"
)

func TestRunServesOneSessionUntilInputEnds(t *testing.T) {
	f := newFake()
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- New(Options{Engine: f, ForCallers: core.ForCallers, Access: operator}).Run(context.Background(), inR, outW)
	}()
	lines := bufio.NewReader(outR)
	write := func(s string) {
		t.Helper()
		if _, err := io.WriteString(inW, s+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	write(hello)
	b, err := lines.ReadBytes('\n')
	if err != nil || !json.Valid(b) {
		t.Fatalf("answer = %q, %v; want a line of JSON", b, err)
	}
	write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	write(call)
	within(t, f.running, "a running command")
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	inW.Close()
	within(t, f.killed, "the end of the command")
	if err := within(t, done, "the end of the server"); err != nil {
		t.Errorf("the server ended with %v, want no error", err)
	}
	if len(f.hasEnded()) != 1 {
		t.Errorf("ended sessions = %v, want 1", f.hasEnded())
	}
	outW.Close()
}

func TestRunEndsWithContext(t *testing.T) {
	f := newFake()
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer inW.Close()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- New(Options{Engine: f, ForCallers: core.ForCallers, Access: operator}).Run(ctx, inR, os.Stderr)
	}()
	cancel()
	within(t, done, "the end of the server")
}
