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

// token is a client of the server that is somebody.
func token(t *testing.T, s *harness.Server, r v1.TokenRequest) *client.Client {
	t.Helper()
	got, err := s.Client.CreateToken(within(t), r)
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

// asking is a call that phase2 asks about. Nothing of it runs but with consent.
func asking(t *testing.T, n int) v1.ToolCall {
	t.Helper()
	return v1.ToolCall{Input: input(t, map[string]any{"command": fmt.Sprintf("echo %d; rm -r junk", n)})}
}

// ask asks a question and goes away; the question stays for who has the key.
func ask(ctx context.Context, c *client.Client, key string, r v1.ToolCall) (q v1.Approval, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, err = c.CallTool(ctx, "system.bash", r, client.CallOptions{IdempotencyKey: key, Asked: func(a v1.Approval) {
		q = a
		cancel()
	}})
	if q.ID != "" {
		return q, nil
	}
	return q, fmt.Errorf("no question was asked: %w", err)
}

// A caller who has asked too much is told so, and another is not in their way.
func TestApprovalRequestsAreBounded(t *testing.T) {
	t.Parallel()
	const config = onDemand + "profiles: {default: phase2}\ncallers: {max_pending: 3}\napprovals: {max_pending: 5}\n"
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: config, Seed: &seed})
	ann, bob, cid := token(t, s, v1.TokenRequest{Caller: "ann", Trust: 3}), token(t, s, v1.TokenRequest{Caller: "bob", Trust: 3}), token(t, s, v1.TokenRequest{Caller: "cid", Trust: 3})
	var first v1.Approval
	for i := range 3 {
		q, err := ask(within(t), ann, fmt.Sprint("k", i), asking(t, i))
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = q
		}
	}
	for _, key := range []string{"", "k3"} {
		_, err := ann.CallTool(within(t), "system.bash", asking(t, 3), client.CallOptions{IdempotencyKey: key})
		exhausted(t, err, "callers.max_pending")
	}
	for i := range 2 { // who has asked nothing is heard
		if _, err := ask(within(t), bob, fmt.Sprint("k", i), asking(t, i)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := cid.CallTool(within(t), "system.bash", asking(t, 0), client.CallOptions{})
	exhausted(t, err, "approvals.max_pending")

	// What needs no question goes on, and so does all once there is an answer.
	got, err := ann.CallTool(within(t), "system.bash", v1.ToolCall{Input: input(t, map[string]any{"command": "echo fine"})}, client.CallOptions{})
	if err != nil || got.Ending != "exited" {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := s.Client.AnswerApproval(within(t), first.ID, v1.ApprovalAnswer{Action: "deny", Note: "no"}); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(within(t), cid, "k", asking(t, 0)); err != nil {
		t.Error(err)
	}
	got, err = ann.CallTool(within(t), "system.bash", asking(t, 0), client.CallOptions{IdempotencyKey: "k0"})
	if err != nil || got.Ending != "approval_denied" || got.Approval != first.ID {
		t.Errorf("%+v %v", got, err)
	}
	refused, err := s.Client.Audit(within(t), client.AuditFilter{Caller: "ann", Ending: "failed"})
	if err != nil || len(refused) != 2 || !strings.Contains(refused[0].Error, "max_pending") {
		t.Errorf("records of what was refused: %+v %v", refused, err)
	}
}

// exhausted wants the problem of a bound that is reached, with its name.
func exhausted(t *testing.T, err error, bound string) {
	t.Helper()
	if e, ok := errors.AsType[*v1.Problem](err); !ok || e.Status != http.StatusTooManyRequests || !strings.Contains(e.Detail, bound) {
		t.Errorf("got %v and not that %s is reached", err, bound)
	}
}

// Bounds of the scenario below, for a machine with load: a single list or
// answer among so many takes milliseconds.
const (
	manyQuestions = 10_000
	manyTime      = 40 * time.Second // after which it goes on with what is there
	leastMany     = 1_000
)

// Ten thousand questions wait, the service is killed, and they still do: they
// are listed and answered as quickly as ever.
func TestTenThousandApprovalRequests(t *testing.T) {
	const config = onDemand + "profiles: {default: phase2}\ncallers: {max_pending: 20000}\napprovals: {max_pending: 20000, expiry: 1h}\n"
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: config, Seed: &seed})
	ann := token(t, s, v1.TokenRequest{Caller: "ann", Trust: 3})
	began := time.Now()
	questions := askMany(t, ann)
	n := len(questions)
	t.Logf("%d questions in %s", n, time.Since(began))
	for i, start := range []func(){func() {}, func() { s.Kill9(); s.Start() }} {
		began = time.Now()
		start()
		t.Logf("started in %s", time.Since(began))
		pending(t, s, min(n-i, 1000))
		q := questions[i]
		soon(t, "an answer", func() error {
			_, err := s.Client.AnswerApproval(within(t), q.ID, v1.ApprovalAnswer{Action: "approve"})
			return err
		})
		soon(t, "the call that was answered", func() error {
			got, err := ann.CallTool(within(t), "system.bash", asking(t, i), client.CallOptions{IdempotencyKey: fmt.Sprint("k", i)})
			if err == nil && (got.Ending != "exited" || got.Approval != q.ID) {
				err = fmt.Errorf("%+v", got)
			}
			return err
		})
		soon(t, "a question of somebody else", func() error {
			q, err := ask(within(t), token(t, s, v1.TokenRequest{Caller: "bob", Trust: 3}), fmt.Sprint("k", i), asking(t, i))
			if err == nil {
				_, err = s.Client.AnswerApproval(within(t), q.ID, v1.ApprovalAnswer{Action: "deny"})
			}
			return err
		})
	}
	last := questions[n-1]
	got, err := s.Client.Approval(within(t), last.ID)
	if err != nil || got.State != "pending" || got.Caller != "ann" {
		t.Errorf("the last question: %+v %v", got, err)
	}
	t.Logf("the service had %d MiB at most", harness.PeakMemory(t, s.Pid())>>20)
}

// askMany asks as many questions as the time allows; the index is that of the
// key.
func askMany(t *testing.T, c *client.Client) []v1.Approval {
	t.Helper()
	calls := make([]v1.ToolCall, manyQuestions)
	for i := range calls {
		calls[i] = asking(t, i)
	}
	end := time.Now().Add(manyTime)
	out := make([]v1.Approval, manyQuestions)
	var next, asked int
	var mu sync.Mutex
	take := func() int {
		mu.Lock()
		defer mu.Unlock()
		if next == manyQuestions || time.Now().After(end) {
			return -1
		}
		next++
		return next - 1
	}
	var group errgroup.Group
	for range 16 {
		group.Go(func() error {
			for i := take(); i >= 0; i = take() {
				q, err := ask(t.Context(), c, fmt.Sprint("k", i), calls[i])
				if err != nil {
					return err
				}
				mu.Lock()
				out[i] = q
				asked++
				mu.Unlock()
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if asked < leastMany {
		t.Fatalf("only %d questions in %s", asked, manyTime)
	}
	return out[:next]
}

// pending wants at least n questions in the list.
func pending(t *testing.T, s *harness.Server, n int) {
	t.Helper()
	soon(t, "a list", func() error {
		list, err := s.Client.Approvals(within(t), "pending")
		if err == nil && len(list) < n {
			err = fmt.Errorf("%d questions wait, not %d", len(list), n)
		}
		return err
	})
}

// soon wants something to go well, and not to take for ever.
func soon(t *testing.T, what string, do func() error) {
	t.Helper()
	began := time.Now()
	if err := do(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	took := time.Since(began)
	if took > harness.Short {
		t.Errorf("%s took %s", what, took)
	}
	t.Logf("%s took %s", what, took)
}
