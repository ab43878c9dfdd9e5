//go:build integration

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// token creates a token and returns a client that uses it.
func token(t *testing.T, s *harness.Server, r v1.TokenRequest) *client.Client {
	t.Helper()
	got, err := s.Client.Tokens.Create(within(t), r)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Options{Address: "unix:" + s.Socket(), Token: got.Secret})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// callNeedingApproval returns the nth call that needs approval in profile phase2.
func callNeedingApproval(t *testing.T, n int) v1.ToolCall {
	t.Helper()
	return v1.ToolCall{Input: input(t, map[string]any{"command": fmt.Sprintf("echo %d; rm -r junk", n)})}
}

// requestApproval makes a call that needs approval and disconnects. The approval request stays
// pending for a call with the same key.
func requestApproval(ctx context.Context, c *client.Client, key string, r v1.ToolCall) (q v1.Approval, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, err = c.Tools.Call(ctx, "system.bash", r, client.CallOptions{IdempotencyKey: key, Asked: func(a v1.Approval) {
		q = a
		cancel()
	}})
	if q.ID != "" {
		return q, nil
	}
	return q, fmt.Errorf("the call requested no approval: %w", err)
}

// TestApprovalRequestsAreBounded checks that a caller with too many pending approval requests is
// refused, and that other callers are not.
func TestApprovalRequestsAreBounded(t *testing.T) {
	t.Parallel()
	const config = onDemand + "profiles: {default: phase2}\n" +
		"callers: {max_pending: 3}\napprovals: {max_pending: 5}\n"
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: config, Seed: &seed})
	ann := token(t, s, v1.TokenRequest{Caller: "ann", Trust: 3})
	bob := token(t, s, v1.TokenRequest{Caller: "bob", Trust: 3})
	cid := token(t, s, v1.TokenRequest{Caller: "cid", Trust: 3})
	var first v1.Approval
	for i := range 3 {
		q, err := requestApproval(within(t), ann, fmt.Sprint("k", i), callNeedingApproval(t, i))
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = q
		}
	}
	for _, key := range []string{"", "k3"} {
		_, err := ann.Tools.Call(within(t), "system.bash", callNeedingApproval(t, 3), client.CallOptions{IdempotencyKey: key})
		assertExhausted(t, err, "callers.max_pending")
	}
	for i := range 2 { // another caller is served
		if _, err := requestApproval(within(t), bob, fmt.Sprint("k", i), callNeedingApproval(t, i)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := cid.Tools.Call(within(t), "system.bash", callNeedingApproval(t, 0), client.CallOptions{})
	assertExhausted(t, err, "approvals.max_pending")

	// Calls that need no approval go on, and so do all once a request is answered.
	fine := v1.ToolCall{Input: input(t, map[string]any{"command": "echo fine"})}
	got, err := ann.Tools.Call(within(t), "system.bash", fine, client.CallOptions{})
	if err != nil || got.Ending != "exited" {
		t.Errorf("a call that needs no approval = %+v, %v; want exited", got, err)
	}
	if _, err := s.Client.Approvals.Answer(within(t), first.ID, v1.ApprovalAnswer{Action: "deny", Note: "no"}); err != nil {
		t.Fatal(err)
	}
	if _, err := requestApproval(within(t), cid, "k", callNeedingApproval(t, 0)); err != nil {
		t.Errorf("request after an answer: %v, want success", err)
	}
	got, err = ann.Tools.Call(within(t), "system.bash", callNeedingApproval(t, 0), client.CallOptions{IdempotencyKey: "k0"})
	if err != nil || got.Ending != "approval_denied" || got.Approval != first.ID {
		t.Errorf("the denied call = %+v, %v; want approval_denied", got, err)
	}
	refused, err := s.Client.Audit.Records(within(t), client.AuditFilter{Caller: "ann", Ending: "failed"})
	if err != nil || len(refused) != 2 || !strings.Contains(refused[0].Error, "max_pending") {
		t.Errorf("records of the refused requests = %+v, %v; want 2 that name max_pending", refused, err)
	}
}

// assertExhausted checks that the error is status 429 and names the limit.
func assertExhausted(t *testing.T, err error, limit string) {
	t.Helper()
	if e, ok := errors.AsType[*v1.Problem](err); !ok || e.Status != http.StatusTooManyRequests ||
		!strings.Contains(e.Detail, limit) {
		t.Errorf("error %v, want status 429 that names %s", err, limit)
	}
}

// The bounds of the scenario below, for a loaded machine: a single list or answer takes
// milliseconds.
const (
	manyRequests = 10_000
	manyTime     = 40 * time.Second // after it, the test continues with the requests that exist
	leastMany    = 1_000
)

// TestManyApprovalRequestsSurviveRestart kills the service while many approval requests are
// pending. Afterwards they must still be listed and answered quickly.
func TestManyApprovalRequestsSurviveRestart(t *testing.T) {
	const config = onDemand + "profiles: {default: phase2}\n" +
		"callers: {max_pending: 20000}\napprovals: {max_pending: 20000, expiry: 1h}\n"
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: config, Seed: &seed})
	ann := token(t, s, v1.TokenRequest{Caller: "ann", Trust: 3})
	began := time.Now()
	requests := requestMany(t, ann)
	n := len(requests)
	t.Logf("%d approval requests in %s", n, time.Since(began))
	for i, start := range []func(){func() {}, func() { s.Kill9(); s.Start() }} {
		began = time.Now()
		start()
		t.Logf("started in %s", time.Since(began))
		assertPending(t, s, min(n-i, 1000))
		q := requests[i]
		assertQuick(t, "an answer", func() error {
			_, err := s.Client.Approvals.Answer(within(t), q.ID, v1.ApprovalAnswer{Action: "approve"})
			return err
		})
		assertQuick(t, "the approved call", func() error {
			got, err := ann.Tools.Call(within(t), "system.bash", callNeedingApproval(t, i),
				client.CallOptions{IdempotencyKey: fmt.Sprint("k", i)})
			if err == nil && (got.Ending != "exited" || got.Approval != q.ID) {
				err = fmt.Errorf("got %+v, want exited with approval %s", got, q.ID)
			}
			return err
		})
		assertQuick(t, "a request of another caller", func() error {
			bob := token(t, s, v1.TokenRequest{Caller: "bob", Trust: 3})
			q, err := requestApproval(within(t), bob, fmt.Sprint("k", i), callNeedingApproval(t, i))
			if err == nil {
				_, err = s.Client.Approvals.Answer(within(t), q.ID, v1.ApprovalAnswer{Action: "deny"})
			}
			return err
		})
	}
	last := requests[n-1]
	got, err := s.Client.Approvals.Get(within(t), last.ID)
	if err != nil || got.State != "pending" || got.Caller != "ann" {
		t.Errorf("Approval of the last request = %+v, %v; want ann's, pending", got, err)
	}
	t.Logf("peak memory %d MiB", harness.PeakMemory(t, s.Pid())>>20)
}

// requestMany requests as many approvals as the time allows. The index of an approval is the number
// of its key.
func requestMany(t *testing.T, c *client.Client) []v1.Approval {
	t.Helper()
	calls := make([]v1.ToolCall, manyRequests)
	for i := range calls {
		calls[i] = callNeedingApproval(t, i)
	}
	end := time.Now().Add(manyTime)
	out := make([]v1.Approval, manyRequests)
	var next, done int
	var mu sync.Mutex
	nextIndex := func() int {
		mu.Lock()
		defer mu.Unlock()
		if next == manyRequests || time.Now().After(end) {
			return -1
		}
		next++
		return next - 1
	}
	var group errgroup.Group
	for range 16 {
		group.Go(func() error {
			for i := nextIndex(); i >= 0; i = nextIndex() {
				q, err := requestApproval(t.Context(), c, fmt.Sprint("k", i), calls[i])
				if err != nil {
					return err
				}
				mu.Lock()
				out[i] = q
				done++
				mu.Unlock()
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if done < leastMany {
		t.Fatalf("%d approval requests in %s, want at least %d", done, manyTime, leastMany)
	}
	return out[:next]
}

// assertPending checks that at least n approval requests are listed as pending.
func assertPending(t *testing.T, s *harness.Server, n int) {
	t.Helper()
	assertQuick(t, "a list", func() error {
		list, err := s.Client.Approvals.List(within(t), "pending")
		if err == nil && len(list) < n {
			err = fmt.Errorf("%d requests are pending, want at least %d", len(list), n)
		}
		return err
	})
}

// assertQuick checks that do succeeds within a bounded time.
func assertQuick(t *testing.T, what string, do func() error) {
	t.Helper()
	began := time.Now()
	if err := do(); err != nil {
		t.Errorf("%s: %v; want no error", what, err)
	}
	took := time.Since(began)
	if took > harness.Short {
		t.Errorf("%s took %s, want at most %s", what, took, harness.Short)
	}
	t.Logf("%s took %s", what, took)
}
