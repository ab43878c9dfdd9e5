package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func TestStreamedCallSendsEvents(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	var kinds []string
	var end v1.ToolEvent
	hear(t, srv, "POST", "/v1/tools/system.run/call", `{"input":{"argv":["echo","hi"]}}`, func(kind, data string) bool {
		kinds = append(kinds, kind)
		if err := json.Unmarshal([]byte(data), &end); err != nil {
			t.Fatal(err)
		}
		if kind == "stdout" && end.Data != "hi\n" {
			t.Errorf("stdout event = %s, want data %q", data, "hi\n")
		}
		return false
	})
	if got := strings.Join(kinds, " "); got != "started stdout end" || end.Result == nil ||
		end.Result.Ending != "exited" {
		t.Fatalf("events = %s, last %+v; want started stdout end", got, end)
	}
	// An error before the first event has its own status.
	got := ask(t, srv, "POST", "/v1/tools/nope/call", `{}`, "Accept", formEvents)
	problemIs(t, got, http.StatusNotFound, "not_found", "")
}

// The approval request of a client that disconnects is canceled.
func TestClientDisconnectCancelsApprovalRequest(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	hear(t, srv, "POST", "/v1/tools/system.bash/call", `{"input":{"command":"rm -f x"}}`,
		func(kind, _ string) bool { return kind == "approval" })
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		var list v1.List[v1.Approval]
		ask(t, srv, "GET", "/v1/approvals?state=cancelled", "").into(t, &list)
		if len(list.Items) == 1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the approval request is not cancelled, want it cancelled")
		}
	}
}

// A client that is too slow misses output and learns how much. It never misses other events.
func TestSlowClientMissesOutputOnly(t *testing.T) {
	c := &toolStream{missed: map[string]int64{}, wake: make(chan struct{}, 1)}
	w := c.watch()
	w.Started("s1")
	total := 0
	for range 3 * maxPending / 1000 {
		w.Output("stdout", make([]byte, 1000))
		total += 1000
	}
	w.Asked(v1.Approval{ID: "q1"})
	first := c.takeQueue()
	w.Output("stdout", []byte("x"))
	sent := 0
	for _, q := range first {
		sent += len(q.output)
	}
	next := c.takeQueue()
	if sent > maxPending || first[0].event.SandboxID != "s1" || first[len(first)-1].event.Approval.ID != "q1" ||
		len(next) != 1 || next[0].event.Missed != int64(total-sent) {
		t.Fatalf("%d of %d bytes sent of %d events, then %+v; want at most %d bytes of s1, approval q1 last, "+
			"then one event with the rest as missed", sent, total, len(first), next, maxPending)
	}
}

func TestOutputEventsKeepCharactersTogether(t *testing.T) {
	w := httptest.NewRecorder()
	e := newToolEventer(w)
	for _, p := range []string{"a\xe2\x82", "\xac", "\xff", "\xe2"} {
		if err := e.queued(queuedEvent{event: v1.ToolEvent{Type: "stdout"}, output: []byte(p)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.flush(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(w.Body.String()) {
		var v v1.ToolEvent
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if err := json.Unmarshal([]byte(data), &v); err != nil {
				t.Fatal(err)
			}
			got = append(got, v.Data+v.Base64)
		}
	}
	if strings.Join(got, "|") != "a|€|/w==|4g==" {
		t.Fatalf("output events = %q, want characters kept together", got)
	}
}
