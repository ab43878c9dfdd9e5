package service

import (
	"os"
	"path/filepath"

	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
)

// probes are the files below a state directory that remember a trial of gVisor, as patterns. Each
// is bound to the programs and to the boot of the host, so a copy is as good.
const probes = "*/*gvisor.json"

// probeCache returns the directory in which doctor keeps its trials. They can take seconds, and
// doctor's state directory is temporary.
func probeCache() (string, error) {
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "orchestrator", "doctor"), err
}

// recallProbes copies what earlier doctors found to a state directory. Without it, the drivers try
// again.
func recallProbes(dir string) {
	if cache, err := probeCache(); err == nil {
		copyProbes(cache, dir)
	}
}

// keepProbes copies what was found in a state directory for later doctors.
func keepProbes(dir string) {
	if cache, err := probeCache(); err == nil {
		copyProbes(dir, cache)
	}
}

// copyProbes copies what it can: the files only save time.
func copyProbes(from, to string) {
	files, err := filepath.Glob(filepath.Join(from, probes))
	if err != nil {
		return
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		path := filepath.Join(to, filepath.Base(filepath.Dir(file)), filepath.Base(file))
		if os.MkdirAll(filepath.Dir(path), 0o700) == nil {
			_ = hostfile.Replace(path, text, 0o600)
		}
	}
}
