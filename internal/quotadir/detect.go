package quotadir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// probeTime bounds a trial; it takes some 20 ms where nothing is wrong.
const probeTime = 20 * time.Second

// Detect says which mechanism is to be had for folders in dir, by making a small disk there: Loop, which nothing in a sandbox can get
// around, or None. why says what stands against Loop, and whether Project would work, which is never taken unasked: see makeProject. It is ""
// for Loop.
func Detect(dir string) (m Mechanism, why string) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
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

// Try makes a small disk of one mechanism in dir, mounts it and takes it away again. nil: it works.
func Try(ctx context.Context, dir string, m Mechanism) (err error) {
	probe, err := os.MkdirTemp(dir, ".disk-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(probe)) }()
	if err := Make(ctx, probe, Options{Bytes: MinBytes, Mechanism: m}); err != nil {
		return err
	}
	_, err = Mount(ctx, probe)
	return errors.Join(err, Unmount(context.WithoutCancel(ctx), probe))
}
