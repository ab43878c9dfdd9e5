package quotadir

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
)

// base returns a directory for disks. Mounts below it are removed with the test.
func base(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		points, err := livemount.Below(dir)
		for _, p := range points {
			err = errors.Join(err, livemount.Unbind(context.Background(), p))
		}
		if err != nil {
			t.Errorf("unmount everything below %s = %v, want no error", dir, err)
		}
	})
	return dir
}

func made(t *testing.T, opt Options) string {
	t.Helper()
	dir := filepath.Join(base(t), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Make(t.Context(), dir, opt); err != nil {
		t.Fatal(err)
	}
	return dir
}

func mounted(t *testing.T, dir string) string {
	t.Helper()
	root, err := Mount(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func unmounted(t *testing.T, dir string) {
	t.Helper()
	if err := Unmount(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
}

func TestLoopCapacityIsRequestedSize(t *testing.T) {
	for _, size := range []int64{MinBytes, 8 << 20, 64 << 20, 200 << 20, 500 << 20, 3 << 30, 10 << 30, 100 << 30} {
		t.Run(strconv.FormatInt(size>>20, 10), func(t *testing.T) {
			dir := made(t, Options{Bytes: size, Mechanism: Loop, UID: 1000, GID: 1000})
			root := mounted(t, dir)
			use, err := Usage(root)
			if err != nil {
				t.Fatal(err)
			}
			if use.Free > size || use.Free < size-size/100-128<<10 {
				t.Errorf("%d bytes free, want about %d", use.Free, size)
			}
			if use.FilesFree < size/8192 {
				t.Errorf("free for %d files, want at least %d", use.FilesFree, size/8192)
			}
			unmounted(t, dir)
			rest, err := UsageOf(dir)
			if err != nil {
				t.Fatal(err)
			}
			if d := rest.Free - use.Free; d > 64<<10 || d < -64<<10 {
				t.Errorf("free unmounted: %d, mounted: %d; want at most 64 KiB between them", rest.Free, use.Free)
			}
		})
	}
}

func TestWriteStopsAtLimit(t *testing.T) {
	const size = 16 << 20
	dir := made(t, Options{Bytes: size, Mechanism: Loop})
	root := mounted(t, dir)
	name := filepath.Join(root, "f")
	err := os.WriteFile(name, make([]byte, 2*size), 0o600)
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("writing twice the quota = %v, want ENOSPC", err)
	}
	fi, err := os.Stat(name)
	if err != nil || fi.Size() > size || fi.Size() < size*9/10 {
		t.Fatalf("file has %d bytes, %v; want about %d", fi.Size(), err, size)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; err == nil; n++ {
		err = os.WriteFile(filepath.Join(root, strconv.Itoa(n)), nil, 0o600)
	}
	if !errors.Is(err, unix.ENOSPC) || n < 1000 || n > size/1024 {
		t.Fatalf("after %d empty files: %v, want ENOSPC after 1000 to %d", n, err, size/1024)
	}
}

func TestFilesSurviveRemount(t *testing.T) {
	dir := made(t, Options{Bytes: 8 << 20, Mechanism: Loop, UID: 1000, GID: 1001})
	root := mounted(t, dir)
	if again := mounted(t, dir); again != root {
		t.Fatalf("mounted again at %s, want %s", again, root)
	}
	var st unix.Stat_t
	if err := unix.Stat(root, &st); err != nil || st.Mode != unix.S_IFDIR|0o700 || st.Uid != 1000 || st.Gid != 1001 {
		t.Fatalf("root: mode %o of %d:%d, %v; want a directory of mode 700 of 1000:1001", st.Mode, st.Uid, st.Gid, err)
	}
	if err := os.WriteFile(filepath.Join(root, "a"), []byte("here"), 0o600); err != nil {
		t.Fatal(err)
	}
	unmounted(t, dir)
	unmounted(t, dir)
	if is, err := Mounted(dir); is || err != nil {
		t.Fatalf("Mounted = %v, %v; want false", is, err)
	}
	mounted(t, dir)
	got, err := os.ReadFile(filepath.Join(root, "a"))
	if err != nil || string(got) != "here" {
		t.Fatalf("a = %q, %v; want here", got, err)
	}
}

// brief returns a context for calls that must fail because a disk is in use: long enough for
// retries, but shorter than the full wait.
func brief(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestUnmountOpenFileIsBusy(t *testing.T) {
	dir := made(t, Options{Bytes: 8 << 20, Mechanism: Loop})
	f, err := os.Create(filepath.Join(mounted(t, dir), "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Unmount(brief(t), dir); !errors.Is(err, ErrBusy) {
		t.Fatalf("Unmount with an open file = %v, want ErrBusy", err)
	}
	f.Close()
	unmounted(t, dir)
}

// cloned clones a directory's mount.
func cloned(t *testing.T, root string) (target string) {
	t.Helper()
	target = filepath.Join(base(t), "slot")
	if err := os.Mkdir(target, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := livemount.MakeTmpfs(target, livemount.Tmpfs{Bytes: 1 << 20, Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	if err := livemount.Bind(target, root, false); err != nil {
		t.Fatal(err)
	}
	return target
}

// A container has such a clone.
func TestUnmountCloneIsBusy(t *testing.T) {
	dir := made(t, Options{Bytes: 8 << 20, Mechanism: Loop})
	root := mounted(t, dir)
	target := cloned(t, root)
	if err := Unmount(brief(t), dir); !errors.Is(err, ErrBusy) {
		t.Fatalf("Unmount beside a clone = %v, want ErrBusy", err)
	} else if !strings.Contains(err.Error(), "in use by process ") {
		t.Errorf("unmount beside a clone: got %q, want the process that has it", err)
	}
	if err := os.WriteFile(filepath.Join(target, "late"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A second mount must reuse the file system. A second device on the same blocks would corrupt
	// it.
	mounted(t, dir)
	if _, err := os.Stat(filepath.Join(root, "late")); err != nil {
		t.Fatal(err)
	}
	if err := livemount.Unbind(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	unmounted(t, dir)
}

func TestResizeGrowAndShrink(t *testing.T) {
	dir := made(t, Options{Bytes: 8 << 20, Mechanism: Loop})
	root := mounted(t, dir)
	if err := os.WriteFile(filepath.Join(root, "a"), bytes.Repeat([]byte("x"), 5<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(size int64) {
		t.Helper()
		use, err := UsageOf(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := use.Free + 5<<20; got > size+64<<10 || got < size-size/50-256<<10 {
			t.Errorf("free for files: %d, want about %d", got, size)
		}
		if n, m, err := Bound(dir); n != size || m != Loop || err != nil {
			t.Errorf("Bound = %d, %s, %v; want %d, %s", n, m, err, size, Loop)
		}
	}
	if err := Resize(t.Context(), dir, 400<<20); errdefs.IsFailedPrecondition(err) && !may(unix.CAP_SYS_RESOURCE) {
		check(8 << 20)
		unmounted(t, dir)
		if err := Resize(t.Context(), dir, 400<<20); err != nil {
			t.Fatal(err)
		}
		mounted(t, dir)
	} else if err != nil {
		t.Fatal(err)
	}
	check(400 << 20)
	if err := Resize(t.Context(), dir, 64<<20); !errors.Is(err, ErrBusy) {
		t.Fatalf("Resize to less while mounted = %v, want ErrBusy", err)
	}
	unmounted(t, dir)
	check(400 << 20)
	if err := Resize(t.Context(), dir, 2<<30); err != nil {
		t.Fatal(err)
	}
	check(2 << 30)
	for _, size := range []int64{1 << 30, 64 << 20, 8 << 20} {
		if err := Resize(t.Context(), dir, size); err != nil {
			t.Fatal(err)
		}
		mounted(t, dir)
		check(size)
		unmounted(t, dir)
	}
	small, ok := errors.AsType[*NoRoomError](Resize(t.Context(), dir, 4<<20))
	if !ok || small.Used < 5<<20 || small.Used > 6<<20 {
		t.Fatalf("Resize below the used size = %v, want a NoRoomError with 5 to 6 MiB used", small)
	}
	mounted(t, dir)
	got, err := os.ReadFile(filepath.Join(root, "a"))
	if err != nil || len(got) != 5<<20 || bytes.Count(got, []byte("x")) != len(got) {
		t.Fatalf("file has %d bytes, %v; want 5 MiB of x", len(got), err)
	}
}

// may reports whether this process has a capability.
func may(capability int) bool {
	var head = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return false
	}
	return data[capability/32].Effective&(1<<(capability%32)) != 0
}

func TestMountAlteredImageFails(t *testing.T) {
	for name, alter := range map[string]func(t *testing.T, image string){
		"size":    func(t *testing.T, image string) { truncate(t, image, 32<<20) },
		"cut":     func(t *testing.T, image string) { truncate(t, image, 512) },
		"magic":   func(t *testing.T, image string) { poke(t, image, 1024+0x38, 0) },
		"uuid":    func(t *testing.T, image string) { poke(t, image, 1024+0x68, 0) },
		"feature": func(t *testing.T, image string) { poke(t, image, 1024+0x61, 0x10) },
		"link": func(t *testing.T, image string) {
			if err := errors.Join(os.Rename(image, image+".1"), os.Symlink(image+".1", image)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := made(t, Options{Bytes: 8 << 20, Mechanism: Loop})
			alter(t, filepath.Join(dir, imageFile))
			if _, err := Mount(t.Context(), dir); !errors.Is(err, ErrAltered) || !errdefs.IsDataLoss(err) {
				t.Fatalf("Mount = %v, want ErrAltered with the class DataLoss", err)
			}
			unmounted(t, dir)
		})
	}
}

func truncate(t *testing.T, name string, size int64) {
	t.Helper()
	if err := os.Truncate(name, size); err != nil {
		t.Fatal(err)
	}
}

func poke(t *testing.T, name string, at int64, value byte) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	if value == 0 {
		value = ^b[0]
	} else {
		value |= b[0]
	}
	if _, err := f.WriteAt([]byte{value}, at); err != nil {
		t.Fatal(err)
	}
}
