//go:build integration

package scenarios

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv/testtime"
)

// big is how much a shell writes while the orchestrator is killed five times.
const big = 1 << 30

// source produces the same bytes as the shell: AES-128 in counter mode over zeroes, which is cheap
// and looks random.
func source(t *testing.T) string {
	t.Helper()
	key, iv := bytes.Repeat([]byte{1}, 16), make([]byte, 16)
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	stream := cipher.StreamReader{S: cipher.NewCTR(block, iv), R: zeros{}}
	if _, err := io.CopyN(sum, stream, big); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// killer hashes its input and kills the server after every sixth of it.
type killer struct {
	t      *testing.T
	s      *harness.Server
	sum    hash.Hash
	n      int64
	killed int64
}

// Write kills the server before it accepts the bytes, so that data is in transit.
func (k *killer) Write(p []byte) (int, error) {
	if k.n > (k.killed+1)*big/6 && k.killed < 5 {
		k.killed++
		k.s.Kill9()
		k.s.Begin()
	}
	k.n += int64(len(p))
	return k.sum.Write(p)
}

// TestOutputSurvivesFiveKills follows a large output while the server is killed five times. No byte
// may be lost, repeated or changed.
func TestOutputSurvivesFiveKills(t *testing.T) {
	want := source(t)
	onServerAllRuntimes(t, onDemand, func(t *testing.T, s *harness.Server) {
		id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
		ctx, cancel := context.WithTimeout(t.Context(), testtime.Scale(20*time.Minute))
		defer cancel()
		shell, err := s.Client.StartShell(ctx, id, v1.ShellRequest{Lossless: true, Exec: v1.Exec{
			Command: fmt.Sprintf("openssl enc -aes-128-ctr -nosalt -K %s -iv %032d -in /dev/zero 2>/dev/null | head -c %d",
				strings.Repeat("01", 16), 0, big),
		}})
		if err != nil {
			t.Fatal(err)
		}
		k := &killer{t: t, s: s, sum: sha256.New()}
		gap := func(from, to int64) { t.Errorf("output has a gap from %d to %d, want none", from, to) }
		n, err := s.Client.Follow(ctx, shell.ID, client.FollowRequest{Gap: gap}, k)
		if err != nil || n != big || k.n != big || k.killed != 5 {
			t.Fatalf("Follow returned %d bytes after %d kills, %v; want all bytes and 5 kills", n, k.killed, err)
		}
		if got := hex.EncodeToString(k.sum.Sum(nil)); got != want {
			t.Errorf("SHA-256 is %s, want %s", got, want)
		}
		s.Ready()
		end, err := s.Client.Shell(ctx, shell.ID)
		if err != nil || end.State != "ended" || end.StdoutEnd != big {
			t.Errorf("Shell after its end = %+v, %v; want all output counted", end, err)
		}
	})
}

// TestShellsSurviveRestart checks that SIGTERM and kill -9 lose nothing: the shell continues, its
// output continues from the offset, and the lease and its workspace are unchanged.
func TestShellsSurviveRestart(t *testing.T) {
	t.Parallel()
	onServerAllRuntimes(t, onDemand, func(t *testing.T, s *harness.Server) {
		name := workspace(t, s)
		id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold", Workspace: name, Env: map[string]string{"WHO": "lease"}}).ID
		count := "i=0; while :; do i=$((i+1)); echo $WHO $i; echo $i > /workspace/count; sleep 0.05; done"
		shell, err := s.Client.StartShell(within(t), id, v1.ShellRequest{Exec: v1.Exec{Command: count}})
		if err != nil {
			t.Fatal(err)
		}
		init, next, line := s.Init(id), int64(0), 0
		for _, stop := range []func(){s.Term, s.Kill9, s.Term} {
			next, line = readLines(t, s, shell.ID, next, line)
			stop()
			if _, err := s.Client.Shell(within(t), shell.ID); !errors.Is(err, client.ErrNoServer) {
				t.Errorf("Shell on a stopped server: %v, want ErrNoServer", err)
			}
			s.Start()
		}
		readLines(t, s, shell.ID, next, line)
		if got := s.Init(id); got != init {
			t.Errorf("the sandbox's first process is %d, want the previous one: %d", got, init)
		}
		if got := sh(t, s, id, "echo $WHO; test -s count && echo here"); got != "lease\nhere\n" {
			t.Errorf("the sandbox printed %q, want its variable and here", got)
		}
		// The workspace still has its writer.
		s.Ask(t, "POST", "/v1/sandboxes", `{"workspace":"`+name+`","when_empty":"cold"}`).
			Problem(t, 503, "unavailable", "workspace")
	})
}

// readLines reads ten lines or more from an offset and checks that every number appears once.
func readLines(t *testing.T, s *harness.Server, shell string, next int64, line int) (int64, int) {
	t.Helper()
	var text string
	harness.Eventually(t, harness.Short, "ten lines of output", func() bool {
		out, err := s.Client.Output(within(t), shell, client.OutputRequest{Offset: next, Wait: time.Second})
		if err != nil || out.Gap != 0 || out.Offset != next {
			t.Fatalf("Output = %+v, %v; want no gap", out, err)
		}
		next = out.NextOffset
		text += out.Data
		return strings.Count(text, "\n") >= 10 && strings.HasSuffix(text, "\n")
	})
	for l := range strings.Lines(text) {
		line++
		if want := fmt.Sprintf("lease %d\n", line); l != want {
			t.Fatalf("line %q, want %q", l, want)
		}
	}
	return next, line
}

// TestIdempotencyKeysSurviveRestart checks that a call with an idempotency key is not repeated by
// the next process, and that an interrupted one gets no invented result.
func TestIdempotencyKeysSurviveRestart(t *testing.T) {
	t.Parallel()
	onServerAllRuntimes(t, onDemand, func(t *testing.T, s *harness.Server) {
		ctx := within(t)
		request := v1.SandboxRequest{WhenEmpty: "cold", Labels: map[string]string{"n": "1"}}
		one, err := s.Client.CreateSandbox(ctx, request, client.IdempotencyKey("lease"))
		if err != nil {
			t.Fatal(err)
		}
		appendLine := v1.Exec{Command: "echo once >> /workspace/log; cat /workspace/log"}
		first, err := s.Client.Exec(ctx, one.ID, appendLine, client.IdempotencyKey("exec"))
		if err != nil {
			t.Fatal(err)
		}
		word := uniqueWord()
		long := v1.Exec{Command: "echo twice >> /workspace/log; exec -a " + splitWord(word) + " sleep 3000"}
		cut := make(chan error, 1)
		go func() { // the result is received below
			_, err := s.Client.Exec(ctx, one.ID, long, client.IdempotencyKey("cut"))
			cut <- err
		}()
		awaitProcesses(t, word, 1)
		s.Kill9()
		if err := <-cut; !errors.Is(err, client.ErrLost) && !errors.Is(err, client.ErrNoServer) {
			t.Errorf("Exec while the server was killed: %v, want ErrLost or ErrNoServer", err)
		}
		harness.Eventually(t, harness.Short, "the command of the killed server is dead", func() bool {
			return len(harness.Marked(word)) == 0
		})
		s.Start()
		again, err := s.Client.CreateSandbox(ctx, request, client.IdempotencyKey("lease"))
		if err != nil || again.ID != one.ID {
			t.Errorf("CreateSandbox with the same key = %+v, %v; want sandbox %s", again, err, one.ID)
		}
		second, err := s.Client.Exec(ctx, one.ID, appendLine, client.IdempotencyKey("exec"))
		if err != nil || second.ID != first.ID || second.Stdout != "once\n" {
			t.Errorf("Exec with the same key = %+v, %v; want the first result", second, err)
		}
		r, err := s.Client.Exec(ctx, one.ID, long, client.IdempotencyKey("cut"))
		if err != nil || r.Ending != "sandbox_lost" || r.ExitCode == 0 {
			t.Errorf("Exec with the key of the interrupted call = %+v, %v; want sandbox_lost", r, err)
		}
		if got := sh(t, s, one.ID, "cat /workspace/log"); got != "once\ntwice\n" {
			t.Errorf("the commands wrote %q, want each once", got)
		}
		p := s.Ask(t, "POST", "/v1/sandboxes", `{"ttl_ms":5000}`, "Idempotency-Key", "lease").
			Problem(t, 400, "invalid_argument", "")
		assertContains(t, p.Detail, "lease")
		list, err := s.Client.Sandboxes(ctx, false)
		if err != nil || len(list) != 1 {
			t.Errorf("Sandboxes = %+v, %v; want one", list, err)
		}
	})
}

// TestSandboxLostBetweenServers removes a container while no server runs. The next server must
// report it as lost.
func TestSandboxLostBetweenServers(t *testing.T) {
	t.Parallel()
	onServerAllRuntimes(t, onDemand, func(t *testing.T, s *harness.Server) {
		id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
		init := s.Init(id)
		s.Kill9()
		killProcess(t, init)
		s.Start()
		harness.Eventually(t, harness.Short, "the lease is over", func() bool {
			sb, err := s.Client.Sandbox(within(t), id)
			return err == nil && sb.State == "gone" && sb.Reason == "lost"
		})
		sh(t, s, lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID, "true")
	})
}

// TestGuestShutsDownWithoutHost checks that a sandbox whose host never returns shuts itself down
// and leaves nothing.
func TestGuestShutsDownWithoutHost(t *testing.T) {
	t.Parallel()
	onServerAllRuntimes(t, "guest: {orphan_timeout: 6s}\n"+onDemand, func(t *testing.T, s *harness.Server) {
		word := uniqueWord()
		id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
		sleep := v1.Exec{Command: "exec -a " + word + " sleep 3000"}
		if _, err := s.Client.StartShell(within(t), id, v1.ShellRequest{Exec: sleep}); err != nil {
			t.Fatal(err)
		}
		awaitProcesses(t, word, 1)
		s.Inside(id) // recorded now, because the engine cannot be asked later
		s.Kill9()
		harness.Eventually(t, harness.Long, "no process of the sandbox is left", func() bool {
			return len(harness.Marked(word)) == 0 && len(s.Inside(id)) == 0
		})
	})
}
