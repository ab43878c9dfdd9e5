package mcp

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Every refusal of a tool call is recorded, at whatever point it is refused.
func TestRefusedCallIsRecorded(t *testing.T) {
	f := newFake()
	at, _ := serve(t, Options{Engine: f})
	id := introduce(t, at, "ben")
	long := `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{"x":"` + strings.Repeat("x", maxHead) +
		`"},"name":"system_bash"}}`
	old := []string{"Mcp-Protocol-Version", "2025-03-26"} // this revision has batches
	for what, c := range map[string]struct {
		query, session, body string
		header               []string
		want                 []string
	}{
		"an unknown parameter": {"?workspce=x", id, quick, nil,
			[]string{`system_bash {"command":"echo quick"}: answered with status 400: unknown query ` +
				`parameter "workspce"`}},
		"a repeated parameter": {"?profile=a&profile=b", id, quick, nil, []string{"system_bash"}},
		"another origin": {"", id, quick, []string{"Origin", "http://evil.example"},
			[]string{"system_bash"}},
		"no session":         {"", "", quick, nil, []string{"system_bash"}},
		"an unknown session": {"", "nobodys", quick, nil, []string{"system_bash"}},
		"an unknown version": {"", id, quick, []string{"Mcp-Protocol-Version", "1999-01-01"},
			[]string{"system_bash"}},
		"another content type":  {"", id, quick, []string{"Content-Type", "text/plain"}, []string{"system_bash"}},
		"an unsupported Accept": {"", id, quick, []string{"Accept", "image/png"}, []string{"system_bash"}},
		"a key that is a number": {"", id, `{"jsonrpc":"2.0","id":2,"method":"tools/call",` +
			`"params":{"_meta":{"orchestrator/idempotency-key":7},"name":"fs_read"}}`, nil, []string{"fs_read"}},
		"a name that is a number": {"", id, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":7}}`,
			nil, []string{methodCall}},
		"no parameters": {"", id, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":[]}`, nil,
			[]string{methodCall}},
		"a notification": {"", id, `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"fs_read"}}`,
			nil, []string{"fs_read"}},
		"too long to be read twice": {"?workspce=x", id, long, nil, []string{methodCall}},
		"a batch that is too long": {"", id, "[" + strings.Repeat(quick+",", maxBatch) + quick + "]", old,
			make([]string, maxBatch+1)},
		"a batch": {"", id, "[" + quick + "," +
			strings.ReplaceAll(quick, `"name":"system_bash"`, `"name":7`) + "]", old, []string{methodCall}},
		"a long progress token": {"", id, strings.Replace(quick, `{"name"`, `{"_meta":{"progressToken":"`+
			strings.Repeat("x", maxToken+1)+`"},"name"`, 1), nil, []string{"system_bash"}},
		"a long batch": {"", id, "[" + quick + "," + strings.ReplaceAll(long, `"name":"system_bash"`, `"name":7`) + "]",
			old, []string{methodCall}},
		"no call":       {"?workspce=x", id, `{"jsonrpc":"2.0","id":2,"method":"ping"}`, nil, nil},
		"a served call": {"", id, quick, nil, nil},
		"a long call":   {"", id, long, nil, nil},
	} {
		t.Run(what, func(t *testing.T) {
			_, body := request(t, http.MethodPost, at+c.query, "ben", c.session, c.body, c.header...)
			got := f.hasRefused()
			if len(got) != len(c.want) {
				t.Fatalf("recorded %q, want %q; answered %.300s", got, c.want, body)
			}
			for i, want := range c.want {
				if !strings.HasPrefix(got[i], "ben mcp "+want) || strings.HasSuffix(got[i], ": ") {
					t.Errorf("recorded %q, want %q", got[i], want)
				}
			}
		})
	}
}

// The engine refuses and records a profile that the caller may not use.
func TestRefusedProfileReachesEngine(t *testing.T) {
	f := newFake()
	f.toolsErr = &usererror.InvalidError{Field: "profile", Message: "is not yours to choose"}
	f.callErr = f.toolsErr
	at, _ := serve(t, Options{Engine: f})
	id := introduce(t, at, "ben")
	_, body := request(t, http.MethodPost, at+"?profile=universal", "ben", id, quick)
	if !strings.Contains(body, `"error"`) || !strings.Contains(body, "not yours to choose") {
		t.Errorf("body = %s, want an error that says the profile is not yours to choose", body)
	}
	if len(f.calls) != 1 || f.calls[0].Profile != "universal" || f.by[0].Caller != "ben" || len(f.hasRefused()) != 0 {
		t.Errorf("engine got %+v by %+v, refused %q; want one call of profile universal by ben", f.calls, f.by, f.refused)
	}
}

func TestRefusedBatchHasBoundedRecords(t *testing.T) {
	f := newFake()
	charged := 0
	at, _ := serve(t, Options{Engine: f, Refused: func(_ caller.Principal, n int) { charged += n }})
	id := introduce(t, at, "ben")
	const n = 2000
	body := "[" + strings.TrimSuffix(strings.Repeat(`{"method":"tools/call"},`, n), ",") + "]"
	request(t, http.MethodPost, at, "ben", id, body, "Mcp-Protocol-Version", "2025-03-26")
	got := f.hasRefused()
	if len(got) != maxBatch+1 || !strings.Contains(strings.Join(got, "\n"), "1936 more calls") {
		t.Errorf("recorded %d refusals, want %d and one of the rest", len(got), maxBatch)
	}
	if charged != n {
		t.Errorf("%d refusals are charged, want %d", charged, n)
	}
}

func TestRefuseRecordsCalls(t *testing.T) {
	f := newFake()
	_, s := serve(t, Options{Engine: f})
	cause := errors.New("too many requests")
	r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(quick))
	if err := s.Refuse(httptest.NewRecorder(), r, caller.Principal{Caller: "ben", Via: "http"}, cause); !errors.Is(err,
		cause) {
		t.Errorf("Refuse() = %v, want %v", err, cause)
	}
	if got := f.hasRefused(); len(got) != 1 || !strings.HasPrefix(got[0], "ben mcp system_bash") ||
		!strings.HasSuffix(got[0], cause.Error()) {
		t.Errorf("recorded refusals = %q, want one of system_bash by ben with %v", got, cause)
	}
}
