package quotadir

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
)

// smallHost mounts a separate host file system of about 100 MiB.
func smallHost(t *testing.T) string {
	t.Helper()
	return mounted(t, made(t, Options{Bytes: 100 << 20, Mechanism: Loop}))
}

// thin makes and mounts a disk that is larger than the host's free space.
func thin(t *testing.T, host string) (dir, root string) {
	t.Helper()
	dir = filepath.Join(host, "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Make(t.Context(), dir, Options{Bytes: 300 << 20, Mechanism: Loop}); err != nil {
		t.Fatal(err)
	}
	return dir, mounted(t, dir)
}

// written syncs the file system at dir only. It fails if the file system is full.
func written(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

func TestMountRepairsAfterFullHost(t *testing.T) {
	host := smallHost(t)
	dir, root := thin(t, host)
	if err := os.WriteFile(filepath.Join(root, "before"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	unmounted(t, dir) // so that the data is on the host's disk
	mounted(t, dir)
	big := filepath.Join(root, "big")
	f, err := os.Create(big)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(make([]byte, 150<<20))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		t.Fatal("writing 150 MiB on 100 MiB succeeded, want an error")
	}
	// Write until the journal cannot be written either, and the file system fails.
	for range 200 {
		if hasFailed(filepath.Join(dir, mountDir)) {
			break
		}
		_ = os.WriteFile(filepath.Join(root, "more"), make([]byte, 1<<20), 0o600)
		_ = errors.Join(written(root), written(host)) // these writes must fail
		time.Sleep(10 * time.Millisecond)
	}
	// With free space again, Mount repairs what it finds damaged. Removing the file frees nothing
	// while nothing can be written.
	mounted(t, dir)
	if err := os.Remove(big); err != nil && !errors.Is(err, os.ErrNotExist) { // the failure may have lost the file
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "after"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(root, "before")); err != nil || string(got) != "kept" {
		t.Fatalf("before = %q, %v; want kept", got, err)
	}
	unmounted(t, dir)
}

// A clone keeps the failed file system mounted, so it cannot be repaired and must not be used.
func TestMountFailedDiskWithCloneIsBusy(t *testing.T) {
	dir := made(t, Options{Bytes: 8 << 20, Mechanism: Loop})
	root := mounted(t, dir)
	target := cloned(t, root)
	f, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	const shutdown = 0x8004587d // EXT4_IOC_SHUTDOWN fails the file system like an unwritable journal
	err = errors.Join(unix.IoctlSetPointerInt(int(f.Fd()), shutdown, 0), f.Close())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := Mount(brief(t), dir); !errors.Is(err, ErrBusy) {
			t.Fatalf("Mount beside a clone = %v, want ErrBusy", err)
		}
	}
	if err := livemount.Unbind(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mounted(t, dir), "after"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	unmounted(t, dir)
}

func TestGuardReservesBeforeHostIsFull(t *testing.T) {
	host := smallHost(t)
	dir, root := thin(t, host)
	guard := func(margin int64, want bool) {
		t.Helper()
		if tight, err := Guard(t.Context(), host, margin); tight != want || err != nil {
			t.Fatalf("Guard with a margin of %d = %v, %v; want %v", margin, tight, err, want)
		}
	}
	guard(20<<20, false)
	name := filepath.Join(root, "f")
	if err := os.WriteFile(name, make([]byte, 60<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(written(root), written(host)); err != nil {
		t.Fatal(err)
	}
	guard(60<<20, true)
	err := os.WriteFile(filepath.Join(root, "g"), make([]byte, 1<<20), 0o600)
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("write while reserved = %v, want ENOSPC", err)
	}
	if use, err := Usage(root); err != nil || use.Free > 0 {
		t.Fatalf("free bytes while reserved = %d, %v; want 0", use.Free, err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := written(root); err != nil { // freed blocks are released with the transaction
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		use, err := Usage(host)
		if err != nil {
			t.Fatal(err)
		}
		if use.Free > 80<<20 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("host has %d bytes free after the removal, want more", use.Free)
		}
		time.Sleep(20 * time.Millisecond)
	}
	guard(60<<20, false)
	if err := os.WriteFile(filepath.Join(root, "g"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	unmounted(t, dir)
}

// Shrinking makes a copy, which must not use the space that Guard keeps free.
func TestResizeShrinkKeepsHostReserve(t *testing.T) {
	host := smallHost(t)
	dir := filepath.Join(host, "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Make(t.Context(), dir, Options{Bytes: 48 << 20, Mechanism: Loop}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mounted(t, dir), "a"), bytes.Repeat([]byte("x"), 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	unmounted(t, dir)
	var image unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, imageFile), &image); err != nil {
		t.Fatal(err)
	}
	before, err := Usage(host)
	if err != nil {
		t.Fatal(err)
	}
	filler, err := os.Create(filepath.Join(host, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	// Leave space for little more than the copy.
	if err := errors.Join(unix.Fallocate(int(filler.Fd()), 0, 0, before.Free-image.Blocks*512-Reserve(before)/2), filler.Close()); err != nil {
		t.Fatal(err)
	}
	if err := Resize(t.Context(), dir, 24<<20); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Resize on a full host: %v, want ENOSPC", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, newImageFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Lstat of the copy = %v, want ErrNotExist", err)
	}
	if err := os.Remove(filler.Name()); err != nil {
		t.Fatal(err)
	}
	if err := Resize(t.Context(), dir, 24<<20); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(mounted(t, dir), "a")); err != nil || len(text) != 16<<20 {
		t.Errorf("file has %d bytes, %v; want %d", len(text), err, 16<<20)
	}
}

func TestSweepRemovesUnused(t *testing.T) {
	dir := base(t)
	var disks []string
	for _, name := range []string{"used", "left", "gone"} {
		d := filepath.Join(dir, name)
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := Make(t.Context(), d, Options{Bytes: 8 << 20, Mechanism: Loop}); err != nil {
			t.Fatal(err)
		}
		mounted(t, d)
		disks = append(disks, d)
	}
	if err := errors.Join(os.Remove(filepath.Join(disks[2], recordFile)), os.Remove(filepath.Join(disks[2], imageFile))); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Sweep(t.Context(), dir, func(d string) bool { return d == disks[0] }); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []bool{true, false, false} {
		if is, err := livemount.IsMount(filepath.Join(disks[i], mountDir)); is != want || err != nil {
			t.Errorf("IsMount of %s = %v, %v; want %v", disks[i], is, err, want)
		}
	}
	devices, err := os.ReadDir("/sys/block")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range devices {
		text, _ := os.ReadFile(filepath.Join("/sys/block", e.Name(), "loop/backing_file"))
		if strings.HasPrefix(string(text), disks[2]) {
			t.Errorf("%s still has %s, want it detached", e.Name(), text)
		}
	}
}

// withQuota mounts a host file system with project quotas.
func withQuota(t *testing.T) string {
	t.Helper()
	dir := base(t)
	image, mnt := filepath.Join(dir, "host.img"), filepath.Join(dir, "host")
	f, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(256<<20), f.Close(), os.Mkdir(mnt, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"mkfs.ext4", "-q", "-F", "-O", "project,quota", "-E", "quotatype=prjquota", image},
		{"mount", "-o", "loop,prjquota", image, mnt},
	} {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil && args[0] == "mount" {
			t.Skipf("this kernel has no project quotas for ext4 (CONFIG_QFMT_V2): %s", out)
		}
		if err != nil {
			t.Fatalf("command %s: %v: %s", args[0], err, out)
		}
	}
	return mnt
}

func TestProjectQuota(t *testing.T) {
	dir := filepath.Join(withQuota(t), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Make(t.Context(), dir, Options{Bytes: 16 << 20, Mechanism: Project}); err != nil {
		t.Fatal(err)
	}
	root := mounted(t, dir)
	write := func(name string) (int64, error) {
		err := os.WriteFile(filepath.Join(root, name), make([]byte, 40<<20), 0o600)
		fi, e := os.Stat(filepath.Join(root, name))
		if e != nil {
			t.Fatal(e)
		}
		return fi.Size(), err
	}
	if !may(unix.CAP_SYS_RESOURCE) { // the capability bypasses the quota
		if n, err := write("a"); !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unix.ENOSPC) || n > 16<<20 || n < 14<<20 {
			t.Fatalf("wrote %d bytes, %v; want about 16 MiB and EDQUOT", n, err)
		}
	}
	use, err := UsageOf(dir)
	if err != nil || use.Bytes != 16<<20 {
		t.Fatalf("UsageOf = %+v, %v; want 16 MiB", use, err)
	}
	if err := Resize(t.Context(), dir, 64<<20); err != nil {
		t.Fatal(err)
	}
	if n, err := write("b"); err != nil || n != 40<<20 {
		t.Fatalf("wrote %d bytes after growing, %v; want 40 MiB", n, err)
	}
	if _, ok := errors.AsType[*NoRoomError](Resize(t.Context(), dir, 16<<20)); !ok {
		t.Fatal("Resize below the used size: want *NoRoomError")
	}
	unmounted(t, dir)
}

func TestDetectMakesDisk(t *testing.T) {
	dir := base(t)
	if m, why := Detect(t.Context(), dir); m != Loop || why != "" {
		t.Fatalf("Detect = %s, %q; want %s without a reason", m, why, Loop)
	}
	if err := Try(t.Context(), dir, Project); err == nil || !strings.Contains(err.Error(), "project quota") {
		t.Fatalf("Try of project quotas without them = %v, want an error about project quotas", err)
	}
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Fatalf("directory = %v, %v; want empty", left, err)
	}
}
