package cli

import (
	"context"
	"io"
	"strings"
	"syscall"
	"testing"
)

func TestInputEndsWithContext(t *testing.T) {
	typed, keyboard := io.Pipe()
	defer keyboard.Close()
	a := &App{Stdin: typed}
	ctx, cancel := context.WithCancelCause(t.Context())
	in := a.Input(ctx)
	if _, err := io.WriteString(keyboard, "x"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	if _, err := io.ReadFull(in, b); err != nil || b[0] != 'x' {
		t.Fatalf("Read = %q, %v; want x", b, err)
	}
	cancel(&Interrupted{syscall.SIGINT})
	if _, err := io.ReadAll(in); ExitCode(err) != 130 {
		t.Fatalf("Read after SIGINT = %v, want an error with exit code 130", err)
	}
	if b, err := io.ReadAll((&App{Stdin: strings.NewReader("all")}).Input(t.Context())); err != nil || string(b) != "all" {
		t.Fatalf("ReadAll = %q, %v; want all", b, err)
	}
}
