package approval

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a gate with a store in dir and a clock of its own.
type world struct {
	*Gate
	store *store.Store
	dir   string
	clock time.Time
	opts  Options
}

// noon of a Wednesday in the middle of a month.
var noon = time.Date(2026, time.July, 15, 12, 0, 0, 0, time.UTC)

func newWorld(tb testing.TB, opts Options) *world {
	tb.Helper()
	w := &world{dir: tb.TempDir(), clock: noon, opts: opts}
	w.open(tb)
	tb.Cleanup(func() { w.store.Close() })
	return w
}

func (w *world) open(tb testing.TB) {
	tb.Helper()
	s, err := store.Open(context.Background(), w.dir)
	if err != nil {
		tb.Fatal(err)
	}
	w.store = s
	g, err := New(context.Background(), w.gateOptions())
	if err != nil {
		tb.Fatal(err)
	}
	w.Gate = g
}

func (w *world) gateOptions() Options {
	o := w.opts
	o.Store, o.Now = w.store, func() time.Time { return w.clock }
	return o
}

// restart replaces the gate, as a restarted process does.
func (w *world) restart(tb testing.TB) {
	tb.Helper()
	if err := w.store.Close(); err != nil {
		tb.Fatal(err)
	}
	w.open(tb)
}

func rules(tb testing.TB, r ...Rule) *Rules {
	tb.Helper()
	c, err := Compile(r)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// showing returns an Ask.Input for what approvers see.
func showing(input string) func() json.RawMessage {
	return func() json.RawMessage { return json.RawMessage(input) }
}

// call returns a call of "ann" to the tool "bash".
func call(key string, r *Rules) Ask {
	return Ask{Call: "call-" + key, Caller: "ann", Session: "s1", Profile: "p", Tool: "bash", Trust: 1, Key: key,
		Hash:  "hash-" + key,
		Input: showing(`{"command":"ls"}`), Args: map[string]any{"command": "ls"}, Rules: r}
}

func (w *world) decide(tb testing.TB, a Ask) Decision {
	tb.Helper()
	d, err := w.Decide(context.Background(), a)
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

func (w *world) want(tb testing.TB, a Ask, o Outcome) Decision {
	tb.Helper()
	d := w.decide(tb, a)
	if d.Outcome != o {
		tb.Fatalf("decision = %+v, want %s", d, o)
	}
	return d
}

// answer answers a request as bob.
func (w *world) answer(tb testing.TB, id string, a Answer) Request {
	tb.Helper()
	r, err := w.Answer(context.Background(), id, "bob", a)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

var prompt = Rule{ID: "ask", Tool: "*", Action: Prompt}

func prompts(tb testing.TB) *Rules {
	tb.Helper()
	return rules(tb, prompt)
}

func budget(limit float64, period string) Rule {
	return Rule{ID: "b", Tool: "*", Action: Budget, Limit: limit, Period: period}
}

func key(i int) string { return fmt.Sprintf("k%d", i) }
