package audit

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

var typical = Record{
	Call: "c", Caller: "ann", Token: "t-01", Profile: "universal", Trust: 2, Session: "s-01", Via: "http",
	Action: "system.bash",
	Input: json.RawMessage(`{"command":"cd /workspace && go test ./... 2>&1 | tail -n 40","timeout_ms":60000,` +
		`"env":{"CI":"1","GOFLAGS":"-mod=mod"},"cwd":"/workspace","description":"run the tests of the whole module ` +
		`and show the end of what they say, as the one before failed in the store"}`),
	Workspace: "w-01", Image: "sha256:0f5c1d3f7f0f5c1d3f7f0f5c1d3f7f0f5c1d3f7f0f5c1d3f7f0f5c1d3f7f0f5c1",
}

// BenchmarkSequentialCalls makes one call after another. It measures begin.
func BenchmarkSequentialCalls(b *testing.B) {
	w := newWorld(b)
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		r := typical
		r.Call = fmt.Sprint("c", i)
		start := time.Now()
		e, err := begin(b.Context(), w.log, r)
		took = append(took, time.Since(start))
		if err != nil {
			b.Fatal(err)
		}
		if err := e.Close(b.Context(), Record{Verdict: "allow", Ending: "exit", Sandbox: "b1"}); err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "begin-p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "begin-p99-µs")
}

// BenchmarkConcurrentCalls measures concurrent calls of many callers.
func BenchmarkConcurrentCalls(b *testing.B) {
	w := newWorld(b)
	var n atomic.Int64
	b.SetParallelism(64)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r := typical
			r.Call = fmt.Sprint("c", n.Add(1))
			e, err := begin(b.Context(), w.log, r)
			if err != nil {
				b.Error(err)
				return
			}
			if err := e.Close(b.Context(), Record{Verdict: "allow", Ending: "exit", Sandbox: "b1"}); err != nil {
				b.Error(err)
			}
		}
	})
	w.flush()
	b.ReportMetric(2*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkVerify verifies a log of 40,000 records.
func BenchmarkVerify(b *testing.B) {
	w := newWorld(b)
	const calls = 20_000
	b.SetParallelism(64)
	for i := range calls {
		r := typical
		r.Call = fmt.Sprint("c", i)
		body, err := encode(r)
		if err != nil {
			b.Fatal(err)
		}
		for range 2 {
			if err := w.log.enqueue(b.Context(), &queueItem{body: body}); err != nil {
				b.Fatal(err)
			}
		}
	}
	w.flush()
	for b.Loop() {
		if r := w.verify(""); !r.OK || r.Records != 2*calls {
			b.Fatalf("Verify = %+v, want OK with all records", r)
		}
	}
	b.ReportMetric(2*calls*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

func BenchmarkRedactJSON(b *testing.B) {
	for _, n := range []int{0, 100, 10_000} {
		b.Run(fmt.Sprintf("%d values", n), func(b *testing.B) {
			r := NewRedactor()
			for i := range n {
				r.Add(fmt.Sprintf("secret value %d", i*7919))
			}
			r.shared() // compiled on first use
			b.SetBytes(int64(len(typical.Input)))
			for b.Loop() {
				v := r.record("")
				v.redactJSON(typical.Input)
			}
		})
	}
}

func BenchmarkRedactText(b *testing.B) {
	r := NewRedactor()
	r.Add("correct horse battery")
	s := `curl -sS -H "Authorization: Bearer abcdef0123456789" ` +
		`https://ann:hunter22@example.com/v1/items?token=abcdef | jq . > /workspace/out.json; export ` +
		`API_KEY="0123456789" && echo correct horse battery | tee -a log.txt && ls -la /usr/share/doc | sort -u ` +
		`-k3 | head -n 20; git status --short; date`
	b.SetBytes(int64(len(s)))
	for b.Loop() {
		v := r.record("")
		v.redactText(s)
	}
}
