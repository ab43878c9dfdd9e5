package docker

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/mount"
	"golang.org/x/sys/unix"
)

// settle detects whether the engine is local, or checks that it is what the options say. The result
// is stored together with everything it depends on.
func (d *Driver) settle(ctx context.Context, mode string) (string, error) {
	if mode == ModeStdio {
		return mode, nil
	}
	local, why, err := d.local(ctx)
	switch {
	case err != nil:
		return "", err
	case local:
		return ModeLocal, nil
	case mode == ModeLocal:
		return "", refused("mode is local, but %s: use auto or stdio", why)
	}
	d.log.Info("engine is used over its API only", "host", d.host, "reason", why)
	return ModeStdio, nil
}

// verdict is the result for local, as stored in the state directory.
type verdict struct {
	Key   string `json:"key"`
	Local bool   `json:"local"`
	Why   string `json:"why,omitempty"`
}

func (d *Driver) local(ctx context.Context) (bool, string, error) {
	if d.engine.remapped {
		return false, "root in its containers is not root of this host (user namespaces)", nil
	}
	file := filepath.Join(d.dir, "locality.json")
	key, err := d.localityKey()
	if err != nil {
		return false, "", err
	}
	var known verdict
	if b, err := os.ReadFile(file); err == nil && json.Unmarshal(b, &known) == nil && known.Key == key {
		return known.Local, known.Why, nil
	}
	found := verdict{Key: key}
	found.Local, found.Why, err = d.probe(ctx)
	if err != nil {
		return false, "", err
	}
	b, err := json.Marshal(found)
	if err == nil {
		err = os.WriteFile(file, b, 0o600)
	}
	if err != nil {
		d.log.Warn("kind of engine not kept, the next start asks again", "error", err)
	}
	return found.Local, found.Why, nil
}

// localityKey changes whenever the result may: with the engine, its address, this boot, and the
// namespaces of this process.
func (d *Driver) localityKey() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	key := d.host + "|" + d.engine.id + "|" + string(boot)
	for _, ns := range []string{"pid", "mnt", "user"} {
		link, nsErr := os.Readlink("/proc/self/ns/" + ns)
		key, err = key+"|"+link, errors.Join(err, nsErr)
	}
	if err != nil {
		return "", fmt.Errorf("docker: look at this process's namespaces: %w", err)
	}
	return key, nil
}

// probe asks the engine to bind two unguessable things. The engine resolves bind sources when it
// creates a container, so the container need not start.
//
//   - A nonce file on a new tmpfs: engine and host share mounts as they appear, not only files. A
//     virtual machine may share directories, and an engine may have its own mount namespace.
//   - The same file through /proc/<our pid>/fd/<n>: engine and host share the kernel and the
//     process ids.
func (d *Driver) probe(ctx context.Context) (local bool, why string, err error) {
	dir := filepath.Join(d.dir, "probe")
	if err := unprobe(dir); err != nil {
		return false, "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, "", fmt.Errorf("docker: make probe folder: %w", err)
	}
	if err := unix.Mount("orchestrator-probe", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
		"size=64k,mode=0700"); err != nil {
		return false, fmt.Sprintf("this process may not mount (%v)", err), errors.Join(unprobe(dir))
	}
	defer func() { err = errors.Join(err, unprobe(dir)) }()
	nonce := rand.Text()
	if err := os.WriteFile(filepath.Join(dir, nonce), nil, 0o600); err != nil {
		return false, "", fmt.Errorf("docker: write nonce: %w", err)
	}
	fd, err := os.Open(dir)
	if err != nil {
		return false, "", fmt.Errorf("docker: open probe folder: %w", err)
	}
	defer func() { _ = fd.Close() }()
	byPid := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd.Fd())
	for _, try := range []struct{ source, why string }{
		{filepath.Join(dir, nonce), "it does not see what this host mounts"},
		{filepath.Join(byPid, nonce), "it does not share this host's kernel and process numbers"},
	} {
		switch seen, err := d.sees(ctx, try.source); {
		case err != nil:
			return false, "", err
		case !seen:
			return false, try.why, nil
		}
	}
	return true, "", nil
}

// sees reports whether path exists for the engine.
func (d *Driver) sees(ctx context.Context, path string) (bool, error) {
	err := d.withHelper(ctx, []mount.Mount{{Type: mount.TypeBind, Source: path, Target: "/probe", ReadOnly: true}},
		func(string) error { return nil })
	// 400: the source does not exist, or may not be bound. In both cases a run directory is
	// impossible.
	if errdefs.IsInvalidArgument(err) {
		return false, nil
	}
	return err == nil, err
}

// unprobe removes the probe's mount and directory, also those of a killed process.
func unprobe(dir string) error {
	for range 8 {
		if err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW); err != nil {
			break
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("docker: remove probe folder: %w", err)
	}
	return nil
}
