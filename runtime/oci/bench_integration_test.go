//go:build integration

package oci

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
)

// BenchmarkLife measures a sandbox from Create to its first answer, and its end.
func BenchmarkLife(b *testing.B) {
	w := newBench(b)
	var create, answer, destroy time.Duration
	for b.Loop() {
		t0 := time.Now()
		s := w.make(b)
		t1 := time.Now()
		if _, err := ask(b, s, map[string]any{"call": make([]uint64, 7)}); err != nil {
			b.Fatal(err)
		}
		t2 := time.Now()
		if err := s.Destroy(context.Background()); err != nil {
			b.Fatal(err)
		}
		create, answer, destroy = create+t1.Sub(t0), answer+t2.Sub(t1), destroy+time.Since(t2)
	}
	report(b, "create-ms", create)
	report(b, "answer-ms", answer)
	report(b, "destroy-ms", destroy)
}

// BenchmarkParts measures the parts of a Create and a Remove.
func BenchmarkParts(b *testing.B) {
	w := newBench(b)
	var makeCell, bundle, start, attach, end, uncell, del, unmount time.Duration
	for b.Loop() {
		h := half{tb: b, b: w, spec: specFor(b)}
		h.spec.Limits = h.spec.Limits.WithDefaults()
		id, ctx := h.spec.ID, b.Context()
		h.record()
		last := time.Now()
		lap := func(sum *time.Duration, err error) {
			if err != nil {
				b.Fatal(err)
			}
			*sum += time.Since(last)
			last = time.Now()
		}
		c, err := rundir.Make(ctx, w.RunDirOptions(id, h.spec.Limits))
		lap(&makeCell, err)
		lap(&bundle, w.makeBundle(h.spec, c))
		said, err := newWords()
		if err != nil {
			b.Fatal(err)
		}
		init, err := w.start(ctx, h.spec, said)
		lap(&start, err)
		lap(&attach, c.Attach(ctx, init.Pid, ocidriver.Share(h.spec.Limits)))
		if err := init.Kill(); err != nil {
			b.Fatal(err)
		}
		lap(&end, init.Wait(ctx))
		lap(&uncell, c.Remove(ctx))
		lap(&del, w.delete(ctx, id))
		if err := ocidriver.RemoveCgroups(ctx, id); err != nil {
			b.Fatal(err)
		}
		lap(&unmount, unmountRoot(filepath.Join(w.bundle(id), overlayName)))
		init.Close()
		_ = said.Close()
		if err := w.Remove(ctx, id); err != nil {
			b.Fatal(err)
		}
	}
	report(b, "cell-ms", makeCell)
	report(b, "bundle-ms", bundle)
	report(b, "start-ms", start)
	report(b, "attach-ms", attach)
	report(b, "kill-ms", end)
	report(b, "uncell-ms", uncell)
	report(b, "delete-ms", del)
	report(b, "unmount-ms", unmount)
}

func report(b *testing.B, name string, sum time.Duration) {
	b.Helper()
	b.ReportMetric(float64(sum.Microseconds())/1000/float64(b.N), name)
}
