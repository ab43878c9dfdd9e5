//go:build integration

package docker

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/moby/moby/client"
)

// BenchmarkColdStart measures Create until the first process runs and commands can be limited.
// BenchmarkEngine measures the same container created by the engine alone. Neither counts the end.
func BenchmarkColdStart(b *testing.B) {
	for _, mode := range modes {
		b.Run(mode, func(b *testing.B) {
			h := newHost(b)
			d := h.open(b, mode)
			s := h.spec(b)
			if err := d.Prepare(b.Context(), s.Image); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				s.ID = "t" + strings.ReplaceAll(uuid.NewString(), "-", "")
				box, err := d.Create(b.Context(), s)
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := box.Destroy(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

func BenchmarkEngine(b *testing.B) {
	h := newHost(b)
	d := h.open(b, ModeStdio)
	s := h.spec(b)
	s.Limits = s.Limits.WithDefaults()
	known, err := d.prepare(b.Context(), s.Image)
	if err != nil {
		b.Fatal(err)
	}
	volume, err := d.guestVolume(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s.ID = "t" + strings.ReplaceAll(uuid.NewString(), "-", "")
		ask, err := configure(s, known, d.engine, places{volume: volume}, d.seccomp)
		if err != nil {
			b.Fatal(err)
		}
		got, err := d.api.ContainerCreate(b.Context(), ask)
		if err != nil {
			b.Fatal(err)
		}
		if _, err = d.api.ContainerStart(b.Context(), got.ID, client.ContainerStartOptions{}); err != nil {
			b.Error(err)
		}
		b.StopTimer()
		if err := d.removeContainer(context.WithoutCancel(b.Context()), got.ID, false); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkDestroy measures the end of a sandbox.
func BenchmarkDestroy(b *testing.B) {
	h := newHost(b)
	d := h.open(b, ModeLocal)
	s := h.spec(b)
	if err := d.Prepare(b.Context(), s.Image); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		s.ID = "t" + strings.ReplaceAll(uuid.NewString(), "-", "")
		box, err := d.Create(b.Context(), s)
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := box.Destroy(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
