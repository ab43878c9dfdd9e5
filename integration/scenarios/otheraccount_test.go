//go:build integration

package scenarios

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// An account and a group that no host uses.
const (
	ordinaryUID = 64_120
	socketGID   = 64_121
)

// openRoot lets other accounts reach the server's socket. The state directory stays closed to them.
func openRoot(t *testing.T, s *harness.Server) {
	t.Helper()
	if err := os.Chmod(filepath.Dir(s.Socket()), 0o755); err != nil {
		t.Fatal(err)
	}
}

// callerToken creates a caller with a token and returns the token.
func callerToken(t *testing.T, s *harness.Server, request string) string {
	t.Helper()
	var tok v1.Token
	got := s.Ask(t, http.MethodPost, "/v1/tokens", request)
	if got.Into(t, &tok); tok.Secret == "" {
		t.Fatalf("POST /v1/tokens %s: status %d, body %s; want a token", request, got.Status, got.Body)
	}
	return tok.Secret
}

// TestOrdinaryAccountIsToldHowToGetAccess checks that no command of an account without permission
// for the socket works without the server, and that each says what is missing.
func TestOrdinaryAccountIsToldHowToGetAccess(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: onDemand, Seed: &seed})
	own := filepath.Join(harness.TempDir(t), "own")
	stranger := harness.Account{
		UID: ordinaryUID, GID: ordinaryUID,
		Env: []string{"ORCHESTRATOR_ADDRESS=unix:" + s.Socket(), "ORCHESTRATOR_STATE_DIR=" + own},
	}
	refused := func(want string) {
		t.Helper()
		for _, args := range [][]string{
			{"run", "-c", "true"}, {"mcp"}, {"workspace", "ls"}, {"image", "ls"}, {"image", "gc"}, {"sandbox", "ls"}, {"ps"},
			{"exec", "id", "--", "true"}, {"tool", "ls"}, {"audit", "ls"}, {"down"},
		} {
			got := s.LaunchAs(t, stranger, nil, args...).Wait()
			if got.Is(t, 77, want); strings.Count(got.Stderr, "\n") != 1 || got.Stdout != "" {
				t.Errorf("%v printed %q and %q, want one line on standard error", args, got.Stdout, got.Stderr)
			}
		}
	}
	refused("its directory is closed to this account")
	openRoot(t, s)
	refused("(root:root, mode 0600): have its operator set socket_group to a group of yours, " +
		"or use its TCP address with --address and --token-file")

	doctor := s.LaunchAs(t, stranger, nil, "doctor", "-o", "json").Wait()
	if !strings.Contains(doctor.Stdout, "have its operator set socket_group") || strings.Contains(doctor.Stdout, "none on") {
		t.Errorf("doctor = %s, want the server's row to say how to get access", doctor.Stdout)
	}
	version := s.LaunchAs(t, stranger, nil, "version").Wait()
	if version.Is(t, 0, ""); !strings.Contains(version.Stdout, "no permission for the server's socket") {
		t.Errorf("version = %s, want it to say that the socket is closed", version.Stdout)
	}

	s.Term()
	s.Configure(onDemand + fmt.Sprintf("socket_group: '%d'\n", socketGID))
	s.Start()
	refused(fmt.Sprintf("(root:%d, mode 0660): join the group %d", socketGID, socketGID))
	if _, err := os.Stat(own); err == nil {
		t.Error("a refused command made a state directory, want none")
	}
}

// TestGroupMemberUsesSocket checks that a member of socket_group is the operator, that a token
// makes it a caller, and that MCP works for both.
func TestGroupMemberUsesSocket(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{
		Runtime: "oci", Config: onDemand + fmt.Sprintf("socket_group: '%d'\n", socketGID), Seed: &seed,
	})
	openRoot(t, s)
	member := harness.Account{
		UID: ordinaryUID, GID: ordinaryUID, Groups: []uint32{socketGID},
		Env: []string{"ORCHESTRATOR_ADDRESS=unix:" + s.Socket()},
	}
	got := s.LaunchAs(t, member, nil, "run", "-c", "id -u; exit 3").Wait()
	if got.Is(t, 3, ""); got.Stdout != "1000\n" {
		t.Errorf("run of a member printed %q, want 1000", got.Stdout)
	}
	got = s.LaunchAs(t, member, nil, "token", "ls").Wait() // only operators may
	got.Is(t, 0, "")
	assertMCPRuns(t, s, member)

	member.Env = append(member.Env, "ORCHESTRATOR_TOKEN="+callerToken(t, s, `{"caller":"ann","trust":3}`))
	got = s.LaunchAs(t, member, nil, "token", "ls").Wait()
	got.Is(t, 77, "")
	assertMCPRuns(t, s, member)
}

// TestOrdinaryAccountUsesTCP checks that an account without access to the socket uses the server by
// a token.
func TestOrdinaryAccountUsesTCP(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: onDemand, Seed: &seed})
	token := callerToken(t, s, `{"caller":"ann","trust":3}`)
	s.Term()
	service := filepath.Join(harness.TempDir(t), "token")
	harness.WriteFile(t, service, strings.Repeat("0123456789abcdef", 4))
	s.With("--listen", "127.0.0.1:0", "--token-file", service)
	s.Begin()
	listening := regexp.MustCompile(`listening on (127\.0\.0\.1:\d+)`)
	harness.Eventually(t, harness.Long, "the server listens", func() bool { return listening.MatchString(s.Log()) })
	ann := harness.Account{
		UID: ordinaryUID, GID: ordinaryUID,
		Env: []string{
			"ORCHESTRATOR_ADDRESS=" + listening.FindStringSubmatch(s.Log())[1],
			"ORCHESTRATOR_STATE_DIR=" + filepath.Join(filepath.Dir(service), "own"),
		},
	}
	s.LaunchAs(t, ann, nil, "mcp").Wait().Is(t, 77, "")
	ann.Env = append(ann.Env, "ORCHESTRATOR_TOKEN="+token)
	assertMCPRuns(t, s, ann)
	s.Term()
}

// assertMCPRuns checks that `orchestrator mcp` of an account runs a command on the server.
func assertMCPRuns(t *testing.T, s *harness.Server, as harness.Account) {
	t.Helper()
	var in strings.Builder
	for _, message := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",` +
			`"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"system_bash","arguments":{"command":"echo $((6*7))"}}}`,
	} {
		in.WriteString(message + "\n")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	running := s.LaunchAs(t, as, r, "mcp")
	if _, err := w.WriteString(in.String()); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.Long, "the tool's result", func() bool {
		return strings.Count(running.Output(), "\n") > 1 || running.Over() == nil
	})
	w.Close()
	got := running.Wait()
	lines := strings.Split(strings.TrimSpace(got.Stdout), "\n")
	var answer struct {
		Result struct {
			StructuredContent struct {
				Stdout string `json:"stdout"`
			} `json:"structuredContent"`
		} `json:"result"`
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &answer); err != nil || answer.Result.StructuredContent.Stdout != "42\n" {
		t.Errorf("mcp answered %q, exit code %d, stderr %q; want 42", got.Stdout, got.Code, got.Stderr)
	}
}
