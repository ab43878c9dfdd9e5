package service

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// TestStandbyAnswersProbesAndPassesSocket checks the answers of a standby, and that the
// socket serves the active process without a break.
func TestStandbyAnswersProbesAndPassesSocket(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "sock")
	s := &service{config: config.Config{Listen: "unix:" + sock}, log: slog.New(slog.DiscardHandler)}
	s.standby = newStandby(s)
	s.standby.wait("process a is active")
	s.standby.wait("process b is active")
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", sock)
	}, DisableKeepAlives: true}}
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := client.Get("http://orchestrator" + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if code, _ := get("/healthz"); code != http.StatusOK {
		t.Errorf("GET /healthz of a standby = %d, want 200", code)
	}
	for _, path := range []string{"/readyz", "/v1/sandboxes"} {
		if code, body := get(path); code != http.StatusServiceUnavailable || !strings.Contains(body, "process b is active") {
			t.Errorf("GET %s of a standby = %d %s, want 503 with the reason", path, code, body)
		}
	}
	if err := s.openListener(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	go http.Serve(s.listener, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) // ends with the test
	if code, _ := get("/readyz"); code != http.StatusOK {
		t.Errorf("GET /readyz after the standby = %d, want 200 of the new server", code)
	}
}

func TestStandbyWithoutSocketListensWhenActive(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "sock")
	other, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	s := &service{config: config.Config{Listen: "unix:" + sock}, log: slog.New(slog.DiscardHandler)}
	s.standby = newStandby(s)
	s.standby.wait("process a is active")
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.openListener(t.Context()); err != nil || s.listener == nil {
		t.Errorf("openListener after the other process = %v, want nil", err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

// TestSilentClientDoesNotDelayActiveProcess leaves a connection open on which nothing is sent.
func TestSilentClientDoesNotDelayActiveProcess(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "sock")
	s := &service{config: config.Config{Listen: "unix:" + sock}, log: slog.New(slog.DiscardHandler)}
	s.standby = newStandby(s)
	s.standby.wait("process a is active")
	silent, err := net.Dial("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	// The answer to a later client shows that the silent one was accepted.
	asked, err := net.Dial("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer asked.Close()
	if _, err := io.WriteString(asked, "GET /healthz HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(asked); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := s.openListener(t.Context()); err != nil {
		t.Errorf("openListener with a silent client = %v, want nil", err)
	}
	if took := time.Since(began); took >= standbyTime {
		t.Errorf("openListener with a silent client took %v, want less than %v", took, standbyTime)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

// TestStandbyLeavesFreedAddress checks that a standby does not listen on an address that has become
// free: the active process may be about to open it.
func TestStandbyLeavesFreedAddress(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "sock")
	other, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	s := &service{config: config.Config{Listen: "unix:" + sock}, log: slog.New(slog.DiscardHandler)}
	s.standby = newStandby(s)
	defer s.standby.close()
	s.standby.wait("process a is active")
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	s.standby.wait("process b is active")
	if conn, err := net.Dial("unix", sock); err == nil {
		conn.Close()
		t.Error("the standby listens on the address of process b, want it free")
	}
}

// TestLostLeaseEndsProcessWithBlockedOutput runs exitLost in a process of its own.
func TestLostLeaseEndsProcessWithBlockedOutput(t *testing.T) {
	const variable = "ORCHESTRATOR_TEST_EXIT_LOST"
	if os.Getenv(variable) != "" {
		_, blocked := io.Pipe() // nothing reads from it
		s := &service{app: &cli.App{Stderr: blocked}, log: slog.New(slog.NewTextHandler(blocked, nil))}
		s.exitLost(errors.New("lost"))
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=20s")
	cmd.Env = append(os.Environ(), variable+"=1")
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != cli.ExitUnavailable {
		t.Errorf("exit code %d, %v, want %d\n%s", code, err, cli.ExitUnavailable, out)
	}
}

// TestOwnerExistsBeforeTheDatabase checks that all candidates of a new directory compete for the
// same Lease.
func TestOwnerExistsBeforeTheDatabase(t *testing.T) {
	dir := t.TempDir()
	first, err := store.EnsureOwner(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	second, err := store.EnsureOwner(t.Context(), dir)
	if err != nil || first == "" || second != first {
		t.Errorf("EnsureOwner = %q, then %q, %v; want the same owner", first, second, err)
	}
	st, err := store.OpenState(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if st.Owner() != first {
		t.Errorf("owner of the database = %q, want %q", st.Owner(), first)
	}
}
