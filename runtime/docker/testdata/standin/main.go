// Command standin takes the guest's place in the tests of the docker driver: it
// is PID 1, reached by the same two ways, and answers each stream's first line,
// which is the path of a file, with that file's content, or with what became of
// writing to it if the line is "write PATH". "init" as last argument of an
// entrypoint script is told apart from "bridge" by name.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
)

func main() {
	if len(os.Args) < 2 {
		os.Exit(64)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	socket := filepath.Join(wire.PrivateDir, "bridge.sock")
	var err error
	switch {
	case os.Args[1] == "bridge":
		err = bridge(socket)
	case slices.Contains(os.Args, "--stdio"):
		err = listen(ctx, socket)
	default:
		err = guestconn.Park(ctx, wire.HostSocket, 4, func(c net.Conn) bool { answer(c); return false }, func() {})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func bridge(socket string) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	return guestconn.Pipe(os.Stdin, os.Stdout, conn)
}

func listen(ctx context.Context, socket string) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	guestconn.ServeBridges(ctx, l, func(c net.Conn) bool { answer(c); return false }, func() {})
	return nil
}

func answer(c net.Conn) {
	defer func() { _ = c.Close() }()
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return
	}
	line = strings.TrimSpace(line)
	if path, ok := strings.CutPrefix(line, "write "); ok {
		err := os.WriteFile(path, []byte("x"), 0o600)
		_, _ = fmt.Fprintf(c, "write: %v", err)
		return
	}
	b, err := os.ReadFile(line)
	if err != nil {
		_, _ = fmt.Fprintf(c, "read: %v", err)
		return
	}
	_, _ = c.Write(b)
}
