package server

import (
	"os"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

func BenchmarkExecTrue(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("not root")
	}
	for name, cg := range map[string]bool{"cgroup": true, "tag": false} {
		if cg && os.Getenv(cgroupEnv) == "" {
			continue
		}
		b.Run(name, func(b *testing.B) {
			s := testServer(b, cg)
			ask[struct{}](b, s, wire.OpClaim, wire.Claim{Lease: "bench"})
			for b.Loop() {
				run1(b, s, wire.Command{Argv: []string{"/bin/true"}})
			}
		})
	}
}

func BenchmarkExecOutput(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("not root")
	}
	s := testServer(b, false)
	const size = 256 << 20
	b.SetBytes(size)
	for b.Loop() {
		k := dial(b, s, wire.OpExec, wire.Command{Argv: []string{"head", "-c", "268435456", "/dev/zero"}})
		n := 0
		for {
			kind, p, err := k.c.ReadFrame()
			if err != nil {
				b.Fatal(err)
			}
			if kind == wire.KindReply {
				break
			}
			if kind == wire.KindStdout {
				n += len(p)
			}
		}
		if n != size {
			b.Fatalf("got %d bytes", n)
		}
	}
}
