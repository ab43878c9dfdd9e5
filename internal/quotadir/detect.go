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

// probeTimeout limits a trial, which normally takes about 20 ms.
const probeTimeout = 20 * time.Second

// Detect returns the mechanism to use in dir, which it finds by making a small disk there. It
// returns Loop, whose limit commands in a sandbox cannot bypass, or None. why is "" for Loop.
// Otherwise it says why Loop does not work, and whether Project would work. Project is never chosen
// automatically; see makeProject.
func Detect(ctx context.Context, dir string) (m Mechanism, why string) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := Try(ctx, dir, Loop)
	if err == nil {
		return Loop, ""
	}
	why = fmt.Sprintf("%s: %v", Loop, err)
	if err := Try(ctx, dir, Project); err == nil {
		why += fmt.Sprintf("; %s works, but must be configured explicitly", Project)
	}
	return None, why
}

// probePrefix begins the names of directories that disks are tried in.
const probePrefix = ".disk-"

// IsProbe reports whether an entry is a directory of Try, also of one that was killed.
func IsProbe(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), probePrefix) }

// Try makes and mounts a small disk in dir and removes it again. It returns nil if the mechanism works.
// It also removes what trials of killed processes left in dir.
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
