package docker

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// fillTime bounds the filling of a guest volume over a slow connection.
const fillTime = 5 * time.Minute

// complete is the file that is written into a guest volume after the guest.
const complete = ".complete"

// guestVolume returns the name of the volume with this guest, and fills it unless a process already
// did. The volume belongs to this guest and this state directory, so each user of the engine can
// purge their own.
func (d *Driver) guestVolume(ctx context.Context) (string, error) {
	select {
	case d.filling <- struct{}{}:
	case <-ctx.Done():
		return "", fmt.Errorf("docker: wait for the guest's volume: %w", context.Cause(ctx))
	}
	defer func() { <-d.filling }()
	if d.filled != "" {
		return d.filled, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, fillTime, errSlow)
	defer cancel()
	hash, err := guestHash(d.guest)
	if err != nil {
		return "", err
	}
	name := "orchestrator-guest-" + hash[:16] + "-" + d.helper
	// Creating a volume that exists returns it.
	_, err = d.api.VolumeCreate(ctx,
		client.VolumeCreateOptions{Name: name, Labels: map[string]string{labelGuest: d.helper}})
	if err != nil {
		return "", d.failed(ctx, "make the guest's volume", err)
	}
	mounts := []mount.Mount{{Type: mount.TypeVolume, Source: name, Target: wire.RunDir,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true}}}
	if err := d.withHelper(ctx, mounts, func(helper string) error { return d.fill(ctx, helper) }); err != nil {
		return "", err
	}
	d.filled = name
	return name, nil
}

// guestHash covers everything that is packed.
func guestHash(guest string) (string, error) {
	h := sha256.New()
	err := eachBinary(guest, func(name string, f *os.File, _ os.FileInfo) error {
		_, _ = io.WriteString(h, name+"\x00") // a hash accepts everything
		_, err := io.Copy(h, f)
		return err
	})
	return hex.EncodeToString(h.Sum(nil)), err
}

// eachBinary opens the existing programs of the guest, and then the guest.
func eachBinary(guest string, do func(name string, f *os.File, info os.FileInfo) error) error {
	one := func(file, name string) error {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		return do(name, f, info)
	}
	name := path.Base(wire.GuestPath)
	for _, program := range wire.Programs() {
		err := one(wire.ProgramPath(guest, program), wire.ProgramPath(name, program))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("docker: read the guest's program %s: %w", program, err)
		}
	}
	if err := one(guest, name); err != nil {
		return fmt.Errorf("docker: read the guest: %w", err)
	}
	return nil
}

// fill copies the guest into helper's volume, unless it is there.
func (d *Driver) fill(ctx context.Context, helper string) error {
	_, err := d.api.ContainerStatPath(ctx, helper, client.ContainerStatPathOptions{Path: path.Join(wire.RunDir, complete)})
	switch {
	case err == nil:
		return nil
	case !errdefs.IsNotFound(err):
		return d.failed(ctx, "look into the guest's volume", err)
	}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := packGuest(w, d.guest)
		_ = w.CloseWithError(err)
		packed <- err
	}()
	// Into the parent directory: the engine does not change the mode of the directory that it
	// unpacks into.
	_, err = d.api.CopyToContainer(ctx, helper,
		client.CopyToContainerOptions{DestinationPath: path.Dir(wire.RunDir), Content: r})
	_ = r.Close()
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, io.ErrClosedPipe) {
		return packErr
	}
	if err != nil {
		return d.failed(ctx, "fill the guest's volume", err)
	}
	return nil
}

// packGuest writes the volume's content: programs and guest first, and last the file that marks it
// complete. Only root may enter the directory, as in a run directory.
func packGuest(to io.Writer, guest string) error {
	w, dir := tar.NewWriter(to), path.Base(wire.RunDir)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o700}); err != nil {
		return err
	}
	err := eachBinary(guest, func(name string, f *os.File, info os.FileInfo) error {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(dir, name), Mode: 0o555,
			Size: info.Size()}); err != nil {
			return err
		}
		_, err := io.Copy(w, f)
		return err
	})
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(dir, complete), Mode: 0o444}); err != nil {
		return err
	}
	return w.Close()
}

// Purge removes what outlives sandboxes in the engine: this state directory's guest volumes. A
// volume that a sandbox still uses stays, without an error.
func (d *Driver) Purge(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, destroyTime, errSlow)
	defer cancel()
	select {
	case d.filling <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("docker: wait for the guest's volume: %w", context.Cause(ctx))
	}
	defer func() { <-d.filling }()
	d.filled = ""
	got, err := d.api.VolumeList(ctx,
		client.VolumeListOptions{Filters: client.Filters{}.Add("label", labelGuest+"="+d.helper)})
	if err != nil {
		return d.failed(ctx, "list volumes", err)
	}
	var all error
	for _, v := range got.Items {
		_, err := d.api.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{})
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
			all = errors.Join(all, d.failed(ctx, "remove volume "+v.Name, err))
		}
	}
	return all
}
