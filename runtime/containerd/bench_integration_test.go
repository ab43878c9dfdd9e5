//go:build integration

package containerd

import (
	"context"
	"testing"
	"time"
)

// BenchmarkLife measures a sandbox from Create to its first answer, and its end.
func BenchmarkLife(b *testing.B) {
	w := newBench(b)
	var create, answer, destroy time.Duration
	for b.Loop() {
		t0 := time.Now()
		s := w.make(b)
		t1 := time.Now()
		sh(b, s, "true")
		t2 := time.Now()
		if err := s.Destroy(context.Background()); err != nil {
			b.Fatal(err)
		}
		create, answer, destroy = create+t1.Sub(t0), answer+t2.Sub(t1), destroy+time.Since(t2)
	}
	for unit, sum := range map[string]time.Duration{"create-ms": create, "answer-ms": answer, "destroy-ms": destroy} {
		b.ReportMetric(float64(sum.Microseconds())/1000/float64(b.N), unit)
	}
}
