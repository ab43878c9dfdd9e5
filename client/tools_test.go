package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// sendEvents answers with these events, a kind and a document in turn.
func sendEvents(w http.ResponseWriter, pairs ...string) {
	w.Header().Set("Content-Type", eventsType)
	for i := 0; i+1 < len(pairs); i += 2 {
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", pairs[i], pairs[i+1])
	}
	w.(http.Flusher).Flush()
}

func TestToolEventsReachTheirCallbacks(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var call v1.ToolCall
		if err := json.NewDecoder(r.Body).Decode(&call); err != nil || string(call.Input) != `{"command":"x"}` ||
			r.URL.Path != "/v1/tools/system.bash/call" {
			t.Errorf("request = %s %+v, %v; want the command x for system.bash", r.URL.Path, call, err)
		}
		if r.Header.Get("Idempotency-Key") != "k" || r.Header.Get("Accept") != eventsType {
			t.Errorf("header = %v, want Idempotency-Key k, Accept %s", r.Header, eventsType)
		}
		sendEvents(
			w,
			"approval",
			`{"type":"approval","approval":{"id":"q1"}}`,
			"started",
			`{"type":"started","sandbox_id":"s1"}`,
		)
		io.WriteString(w, ": still here\n\n")
		sendEvents(
			w,
			"of a newer server",
			`{}`,
			"stdout",
			`{"type":"stdout","data":"a"}`,
			"stderr",
			`{"type":"stderr","base64":"/w==","missed":7}`,
			"end",
			`{"type":"end","result":{"id":"c1","ending":"exited","exit_code":3}}`,
		)
	})
	var told []string
	r, err := c.Tools.Call(t.Context(), "system.bash", v1.ToolCall{Input: json.RawMessage(`{"command":"x"}`)}, CallOptions{
		IdempotencyKey: "k",
		Asked:          func(a v1.Approval) { told = append(told, "asked "+a.ID) },
		Started:        func(s string) { told = append(told, "started "+s) },
		Output:         func(s string, p []byte, missed int64) { told = append(told, fmt.Sprintf("%s %q %d", s, p, missed)) },
	})
	if err != nil || r.Ending != "exited" || r.ExitCode == nil || *r.ExitCode != 3 {
		t.Fatalf("Call = %+v, %v; want exited with code 3", r, err)
	}
	if want := []string{"asked q1", "started s1", `stdout "a" 0`, `stderr "\xff" 7`}; !reflect.DeepEqual(told, want) {
		t.Fatalf("callbacks = %q, want %q", told, want)
	}
}

func TestHostileEvents(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"nothing":               func(w http.ResponseWriter, _ *http.Request) { sendEvents(w) },
		"another form":          func(w http.ResponseWriter, _ *http.Request) { answer(t, w, v1.ToolResult{Ending: "ok"}) },
		"no JSON":               func(w http.ResponseWriter, _ *http.Request) { sendEvents(w, "started", "{") },
		"an end of nothing":     func(w http.ResponseWriter, _ *http.Request) { sendEvents(w, "end", "{}") },
		"an end without ending": func(w http.ResponseWriter, _ *http.Request) { sendEvents(w, "end", `{"result":{}}`) },
		"half an event": func(w http.ResponseWriter, _ *http.Request) {
			sendEvents(w)
			io.WriteString(w, `event: end`+"\n"+`data: {"result":{"ending":"ok"}}`)
		},
		"a cut": func(w http.ResponseWriter, _ *http.Request) {
			sendEvents(w, "started", `{"type":"started"}`)
			cut()
		},
	} {
		c := serve(t, answer)
		r, err := c.Tools.Call(t.Context(), "x", v1.ToolCall{}, CallOptions{Started: func(string) {}})
		if !errors.Is(err, ErrLost) || r.Ending != "" {
			t.Errorf("%s: Call = %+v, %v; want ErrLost without an ending", name, r, err)
		}
	}
}

func TestProblemEventIsError(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		sendEvents(
			w,
			"approval",
			`{"type":"approval","approval":{"id":"q1"}}`,
			"problem",
			`{"status":404,"code":"not_found","detail":"sandbox x is gone"}`,
		)
	})
	_, err := c.Tools.Call(t.Context(), "x", v1.ToolCall{}, CallOptions{Asked: func(v1.Approval) {}})
	if want := "sandbox x is gone"; !errdefs.IsNotFound(err) || err.Error() != want {
		t.Fatalf("Call = %v, want NotFound: %s", err, want)
	}
}

// The client repeats a call with the same key if the server restarts before it answers.
func TestPersistRepeatsWhileServerIsAway(t *testing.T) {
	var mu sync.Mutex
	keys := map[string]int{}
	n := 0
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		keys[r.Header.Get("Idempotency-Key")]++
		n++
		turn := n
		mu.Unlock()
		switch turn {
		case 1:
			sendEvents(w, "approval", `{"type":"approval","approval":{"id":"q1"}}`)
			cut()
		case 2:
			cut()
		case 3:
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusServiceUnavailable)
			answer(t, w, v1.Problem{Status: 503, Code: "unavailable", Detail: "the service is stopping"})
		default:
			sendEvents(w, "end", `{"type":"end","result":{"id":"c1","ending":"ok"}}`)
		}
	})
	away := 0
	r, err := c.Tools.Call(
		t.Context(),
		"x",
		v1.ToolCall{},
		CallOptions{Persist: true, Asked: func(v1.Approval) {}, Away: func(error) { away++ }},
	)
	if err != nil || r.ID != "c1" || away != 3 {
		t.Fatalf("Call = %+v, %v, away %d times; want c1 and 3 times", r, err, away)
	}
	if len(keys) != 1 || keys[""] != 0 {
		t.Fatalf("keys = %v, want only one, not empty", keys)
	}
}

func TestPersistStopsOnRefusal(t *testing.T) {
	var n atomic.Int64
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		n.Add(1)
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		answer(t, w, v1.Problem{Status: 404, Code: "not_found", Detail: "no such tool"})
	})
	if _, err := c.Tools.Call(t.Context(), "x", v1.ToolCall{}, CallOptions{Persist: true}); !errdefs.IsNotFound(err) ||
		n.Load() != 1 {
		t.Fatalf("Call = %v after %d requests, want NotFound after 1", err, n.Load())
	}
}

func TestPersistEndsWithContext(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		answer(t, w, v1.Problem{Status: 503, Code: "unavailable", Detail: "stopping"})
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	options := CallOptions{Persist: true, Away: func(error) { cancel(reason) }}
	if _, err := c.Tools.Call(ctx, "x", v1.ToolCall{}, options); !errors.Is(err, reason) {
		t.Fatalf("Call = %v, want %v", err, reason)
	}
}

func TestPersistStopsWithoutServer(t *testing.T) {
	c, err := New(Options{Address: freeAddress(t)})
	if err != nil {
		t.Fatal(err)
	}
	away := func(err error) { t.Errorf("Away(%v) was called, want no retry", err) }
	_, err = c.Tools.Call(t.Context(), "x", v1.ToolCall{}, CallOptions{Persist: true, Away: away})
	if !errors.Is(err, ErrNoServer) {
		t.Fatalf("Call = %v, want ErrNoServer", err)
	}
}

func TestCopyCallOutputReadsToEnd(t *testing.T) {
	const all = "0123456789"
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var from int
		fmt.Sscan(r.URL.Query().Get("offset"), &from)
		if r.URL.Path != "/v1/calls/c1/output" || r.URL.Query().Get("stream") != "stderr" {
			t.Errorf("request for %s, want stderr of call c1", r.URL)
		}
		w.Header().Set("Orchestrator-Offset", fmt.Sprint(from))
		to := min(from+4, len(all))
		w.Header().Set("Orchestrator-End", fmt.Sprint(to == len(all)))
		io.WriteString(w, all[from:to])
	})
	var b bytes.Buffer
	next, err := c.Tools.CopyOutput(t.Context(), "c1", OutputRequest{Stream: "stderr", Offset: 1}, nil, &b)
	if err != nil || next != 10 || b.String() != all[1:] {
		t.Fatalf("CopyOutput = %d, %v with %q; want 10 with %q", next, err, b.String(), all[1:])
	}
}

// Watch reports a decision made while the server was away once it is back, and no event twice.
func TestWatchApprovalsSurvivesRestart(t *testing.T) {
	var turn atomic.Int64
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if id, ok := strings.CutPrefix(r.URL.Path, "/v1/approvals/q"); ok {
			answer(t, w, v1.Approval{ID: "q" + id, State: "denied"})
			return
		}
		if r.URL.Path == "/v1/approvals" {
			answer(t, w, v1.List[v1.Approval]{Items: []v1.Approval{{ID: "q2", State: "pending"}}})
			return
		}
		switch turn.Add(1) {
		case 1:
			sendEvents(
				w,
				"listening",
				`{"type":"listening"}`,
				"asked",
				`{"type":"asked","approval":{"id":"q1"}}`,
				"asked",
				`{"type":"asked","approval":{"id":"q2"}}`,
			)
			cut()
		default:
			sendEvents(w, "listening", `{"type":"listening"}`, "asked", `{"type":"asked","approval":{"id":"q2"}}`,
				"asked", `{"type":"asked","approval":{"id":"q3"}}`)
			<-r.Context().Done()
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var told []string
	enough := errors.New("enough")
	err := c.Approvals.Watch(ctx, func(e v1.ApprovalEvent) error {
		told = append(told, e.Type+" "+e.Approval.ID+" "+e.Approval.State)
		if e.Approval.ID == "q3" {
			return enough
		}
		return nil
	})
	if want := []string{"asked q1 ", "asked q2 ", "decided q1 denied", "asked q3 "}; !errors.Is(err, enough) ||
		!reflect.DeepEqual(told, want) {
		t.Fatalf("Watch = %v with %q, want %v with %q", err, told, enough, want)
	}
}

func TestWatchApprovalsEndsWithoutServer(t *testing.T) {
	c, err := New(Options{Address: freeAddress(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Approvals.Watch(t.Context(), func(v1.ApprovalEvent) error { return nil }); !errors.Is(err, ErrNoServer) {
		t.Fatalf("Watch = %v, want ErrNoServer", err)
	}
}

func TestGovernedRequests(t *testing.T) {
	var got string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = strings.TrimSpace(r.Method + " " + r.URL.RequestURI() + " " + string(b))
		switch {
		case strings.HasSuffix(r.URL.Path, "/export"):
			io.WriteString(w, "{}\n{}\n")
		default:
			answer(t, w, map[string]any{})
		}
	})
	ctx := t.Context()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	for want, do := range map[string]func() error{
		"GET /v1/tools?profile=p": func() error { _, err := c.Tools.List(ctx, "p"); return err },
		"GET /v1/profiles":        func() error { _, err := c.Tools.Profiles(ctx); return err },
		`POST /v1/policy/check {"command":"ls"}`: func() error {
			_, err := c.Tools.CheckPolicy(ctx, v1.PolicyCheck{Command: "ls"})
			return err
		},
		"GET /v1/approvals?state=pending": func() error { _, err := c.Approvals.List(ctx, "pending"); return err },
		"GET /v1/approvals/q":             func() error { _, err := c.Approvals.Get(ctx, "q"); return err },
		`POST /v1/approvals/q/answer {"action":"deny"}`: func() error {
			_, err := c.Approvals.Answer(ctx, "q", v1.ApprovalAnswer{Action: "deny"})
			return err
		},
		`POST /v1/tokens {"caller":"a","trust":1}`: func() error {
			_, err := c.Tokens.Create(ctx, v1.TokenRequest{Caller: "a", Trust: 1})
			return err
		},
		"GET /v1/tokens":                    func() error { _, err := c.Tokens.List(ctx); return err },
		"DELETE /v1/tokens/t":               func() error { _, err := c.Tokens.Revoke(ctx, "t"); return err },
		"DELETE /v1/sessions/s%2F1":         func() error { return c.Tools.EndSession(ctx, "s/1") },
		"GET /v1/audit/verify?head=3%3Aabc": func() error { _, err := c.Audit.Verify(ctx, "3:abc"); return err },
		"GET /v1/audit?caller=a&limit=5&newest=true&since=2026-01-02T03%3A04%3A05.000000006Z": func() error {
			_, err := c.Audit.Records(ctx, AuditFilter{Caller: "a", Since: at, Limit: 5, Newest: true})
			return err
		},
		"GET /v1/audit/export?after=7": func() error {
			var b bytes.Buffer
			err := c.Audit.Export(ctx, AuditFilter{After: 7}, &b)
			if want := "{}\n{}\n"; b.String() != want {
				t.Errorf("exported %q, want %q", b.String(), want)
			}
			return err
		},
	} {
		if err := do(); err != nil || got != want {
			t.Errorf("asked %s, want %s; %v", got, want, err)
		}
	}
}

func TestCutExportIsLost(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "{}\n")
		w.(http.Flusher).Flush()
		cut()
	})
	if err := c.Audit.Export(t.Context(), AuditFilter{}, io.Discard); !errors.Is(err, ErrLost) {
		t.Fatalf("Export = %v, want ErrLost", err)
	}
}
