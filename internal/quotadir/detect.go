package quotadir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
)

// probeTimeout bounds a trial; it takes some 20 ms where nothing is wrong.
const probeTimeout = 20 * time.Second

// Detect says which mechanism is to be had for folders in dir, by making a small disk there: Loop, which nothing in a sandbox can get
// around, or None. why says what stands against Loop, and whether Project would work, which is never taken unasked: see makeProject. It is ""
// for Loop.
func Detect(dir string) (m Mechanism, why string) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	err := Try(ctx, dir, Loop)
	if err == nil {
		return Loop, ""
	}
	why = fmt.Sprintf("%s: %v", Loop, err)
	if err := Try(ctx, dir, Project); err == nil {
		why += fmt.Sprintf("; %s works, and has to be asked for by name", Project)
	}
	return None, why
}

// probePrefix begins the names of directories that disks are tried in.
const probePrefix = ".disk-"

// IsProbe reports whether an entry is a directory of Try, also of one that was killed.
func IsProbe(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), probePrefix) }

// Try makes a small disk of one mechanism in dir, mounts it and removes it again. nil: it works. It
// also removes what tries in dir have left whose process was killed.
func Try(ctx context.Context, dir string, m Mechanism) (err error) {
	_ = SweepProbes(ctx, dir) // what stays is for the next try
	probe, err := scratch.Make(dir, probePrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, probe.Remove()) }()
	disk := filepath.Join(probe.Path, probeDisk)
	if err := os.Mkdir(disk, 0o700); err != nil {
		return err
	}
	failpoint.Hit("start.probe.made")
	if err := Make(ctx, disk, Options{Bytes: MinBytes, Mechanism: m}); err != nil {
		return err
	}
	failpoint.Hit("start.probe.filled")
	_, err = Mount(ctx, disk)
	failpoint.Hit("start.probe.mounted")
	return errors.Join(err, Unmount(context.WithoutCancel(ctx), disk))
}

// probeDisk is the disk in a directory of Try.
const probeDisk = "disk"

// SweepProbes removes what tries in dir have left whose process was killed: directories, mounts and
// loop devices.
func SweepProbes(ctx context.Context, dir string) error {
	found := false
	err := scratch.Sweep(dir, probePrefix, func(probe string) error {
		found = true
		points, err := livemount.Below(probe)
		for _, point := range points {
			err = errors.Join(err, livemount.Unbind(ctx, point))
		}
		return err
	})
	if found {
		err = errors.Join(err, sweepLoops(dir))
	}
	return err
}
