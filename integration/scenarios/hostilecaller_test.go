//go:build integration

package scenarios

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
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

// One caller does at once everything that could harm others: it poisons the redactor, sends
// requests with too many variables, holds bodies, opens streams, makes calls that are refused,
// sends wrong credentials and batches. The calls of another caller go on, and their records are
// what they were. An operator revokes the token, and nothing of the hostile caller is left.
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
			t.Errorf("Revoke = %+v, %v; want a time of revocation and no error", revoked, err)
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
		t.Errorf("call %d after %v = %+v, %s, %v; want code 0, its own output and no error",
			c.calls-1, took, got, got.Output, err)
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
		t.Fatalf("%d records of %d calls, %v; want %d and no error", len(records), c.calls, err, 2*c.calls)
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
			t.Errorf("record %d has kind %q, want open or close", r.Seq, r.Kind)
		}
	}
	if opened != c.calls {
		t.Errorf("%d opening records, want %d", opened, c.calls)
	}
}

// report logs both distributions and their ratios. The median is about what it was before. It may
// be maxMedianRatio times that, because other programs of the machine use its processors too.
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
