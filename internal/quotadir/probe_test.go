package quotadir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
)

func TestSweepProbesRemovesKilledTry(t *testing.T) {
	dir := base(t)
	left, old := filepath.Join(dir, probePrefix+"1", probeDisk), filepath.Join(dir, probePrefix+"2")
	for _, disk := range []string{left, old} { // the second as earlier versions left it
		if err := os.MkdirAll(disk, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := Make(t.Context(), disk, Options{Bytes: MinBytes, Mechanism: Loop}); err != nil {
			t.Fatal(err)
		}
		mounted(t, disk)
	}
	used, err := scratch.Make(dir, probePrefix)
	if err != nil {
		t.Fatal(err)
	}
	defer used.Remove()
	if err := SweepProbes(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(used.Path) {
		t.Errorf("after SweepProbes there are %v, %v; want %s", entries, err, filepath.Base(used.Path))
	}
	if points, err := livemount.Below(dir); err != nil || len(points) != 0 {
		t.Errorf("mounted: %v, %v; want nothing", points, err)
	}
	loops, err := attachedLoops()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range loops {
		device, err := openLoop(n)
		if err != nil {
			continue
		}
		text, _ := os.ReadFile("/sys/block/" + filepath.Base(device.Name()) + "/loop/backing_file")
		_ = device.Close()
		if strings.HasPrefix(string(text), dir+"/") {
			t.Errorf("%s still has %s, want it detached", device.Name(), text)
		}
	}
}

func TestTryIgnoresLeftovers(t *testing.T) {
	dir := base(t)
	if err := os.MkdirAll(filepath.Join(dir, probePrefix+"1", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Try(t.Context(), dir, None); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("after Try there are %v, %v; want nothing", entries, err)
	}
}
