package livemount

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

func wantMounted(t *testing.T, target string, want int) {
	t.Helper()
	n, err := Mounted(target)
	must(t, err)
	if n != want {
		t.Fatalf("%d mounts at %s, want %d", n, target, want)
	}
}

// parents are the propagation types that the mount of a state directory can have.
var parents = map[string]uintptr{"shared": unix.MS_SHARED, "private": unix.MS_PRIVATE}

func TestBindAndUnbindInRunningContainer(t *testing.T) {
	for name, parent := range parents {
		t.Run(name+" parent", func(t *testing.T) {
			slot := newSlot(t, parent)
			c := startContainer(t, slot)
			c.wantErrno(t, "write", "scratch", 0)
			for _, owner := range []string{"alice", "bob"} {
				ws := workspace(t, owner)
				must(t, Bind(slot, ws, false))
				wantMounted(t, slot, 2)
				c.wantOut(t, "owner", owner) // at once
				c.wantErrno(t, "write", "result", 0)
				b, err := os.ReadFile(filepath.Join(ws, "result"))
				if err != nil || string(b) != "from inside" {
					t.Fatalf("result in the workspace = %q, %v; want \"from inside\"", b, err)
				}
				must(t, Unbind(t.Context(), slot))
				wantMounted(t, slot, 1)
				c.wantErrno(t, "read", "owner", unix.ENOENT)
			}
			c.wantOut(t, "scratch", "from inside")
		})
	}
}

func TestMountFlagsApplyInside(t *testing.T) {
	slot := newSlot(t, unix.MS_PRIVATE)
	c := startContainer(t, slot)
	ws := workspace(t, "alice")
	must(t, unix.Mknod(filepath.Join(ws, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	flagsOf := func() map[string]bool {
		set := map[string]bool{}
		for _, f := range strings.Fields(c.do(t, "flags", "").Out) {
			set[f] = true
		}
		return set
	}

	must(t, Bind(slot, ws, true))
	if got := c.do(t, "write", "result"); got.Errno != unix.EROFS {
		t.Errorf("write to a read-only workspace: %v, want EROFS", got.Errno)
	}
	if f := flagsOf(); !f["ro"] || !f["nosuid"] || !f["nodev"] {
		t.Errorf("flags of a read-only workspace inside = %v, want ro, nosuid and nodev", f)
	}
	must(t, Unbind(t.Context(), slot))

	must(t, Bind(slot, ws, false))
	if got := c.do(t, "open", "null"); got.Errno != unix.EACCES {
		t.Errorf("open of a device in a workspace: %v, want EACCES", got.Errno)
	}
	if f := flagsOf(); f["ro"] || !f["nosuid"] || !f["nodev"] {
		t.Errorf("flags of a writable workspace inside = %v, want nosuid and nodev, not ro", f)
	}
	must(t, Unbind(t.Context(), slot))
	if f := flagsOf(); f["ro"] || !f["nosuid"] || !f["nodev"] {
		t.Errorf("flags of the scratch inside = %v, want nosuid and nodev, not ro", f)
	}
	if err := os.WriteFile(filepath.Join(ws, "still"), nil, 0o644); err != nil {
		t.Errorf("write to the source = %v, want it still writable", err)
	}
}

// brief returns a context for an unmount that must fail. It is long enough for several attempts.
func brief(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestUnbindReportsBusyMount(t *testing.T) {
	slot := newSlot(t, unix.MS_PRIVATE)
	c := startContainer(t, slot)
	for _, use := range []struct{ take, path, give string }{{"open", "owner", "close"}, {"chdir", "", "leave"}} {
		t.Run(use.take, func(t *testing.T) {
			must(t, Bind(slot, workspace(t, "alice"), false))
			c.wantErrno(t, use.take, use.path, 0)
			if err := Unbind(brief(t), slot); !errors.Is(err, ErrBusy) {
				t.Fatalf("Unbind = %v, want %v", err, ErrBusy)
			}
			wantMounted(t, slot, 2)
			c.wantOut(t, "owner", "alice")
			c.wantErrno(t, use.give, "", 0)
			must(t, Unbind(t.Context(), slot))
			wantMounted(t, slot, 1)
		})
	}
}

func TestUnbindWaitsForEndingUser(t *testing.T) {
	slot := newSlot(t, unix.MS_PRIVATE)
	must(t, Bind(slot, workspace(t, "alice"), false))
	f, err := os.Open(filepath.Join(slot, "owner"))
	must(t, err)
	defer f.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Unbind(ended, slot); !errors.Is(err, ErrBusy) {
		t.Fatalf("Unbind with an ended context = %v, want ErrBusy", err)
	}
	tried := make(chan error, 1)
	go func() { tried <- Unbind(t.Context(), slot) }()
	must(t, f.Close())
	must(t, <-tried)
}

func TestBindRefusesOtherFiles(t *testing.T) {
	slot := newSlot(t, unix.MS_PRIVATE)
	ws := workspace(t, "alice")
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(ws, link))
	fifo := filepath.Join(t.TempDir(), "fifo")
	must(t, unix.Mkfifo(fifo, 0o600))
	for name, tt := range map[string]struct {
		source string
		want   error
	}{
		"symbolic link": {link, ErrKind},
		"file":          {filepath.Join(ws, "owner"), ErrKind},
		"fifo":          {fifo, ErrKind},
		"nothing":       {filepath.Join(ws, "none"), os.ErrNotExist},
		"relative path": {"testdata", nil},
	} {
		err := Bind(slot, tt.source, false)
		if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
	if err := BindFile(slot, filepath.Join(ws, "owner"), true); !errors.Is(err, ErrKind) {
		t.Errorf("BindFile of a file on a directory = %v, want ErrKind", err)
	}
	if err := Bind(filepath.Join(slot, "none"), ws, false); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Bind on a missing target = %v, want ErrNotExist", err)
	}
	wantMounted(t, slot, 1)
}

func TestBindRefusesPrivateTarget(t *testing.T) {
	slot := newSlot(t, unix.MS_PRIVATE)
	must(t, unix.Mount("", slot, "", unix.MS_PRIVATE, ""))
	if err := Bind(slot, workspace(t, "alice"), false); !errors.Is(err, ErrNotShared) {
		t.Fatalf("Bind on a private mount = %v, want ErrNotShared", err)
	}
	if ok, err := Shared(slot); ok || err != nil {
		t.Fatalf("Shared = %v, %v; want false", ok, err)
	}
}

func TestSharedAgreesWithStatmount(t *testing.T) {
	slot := newSlot(t, unix.MS_PRIVATE)
	for path, want := range map[string]bool{slot: true, filepath.Dir(slot): false} {
		f, err := open(path, 0)
		must(t, err)
		defer f.Close()
		listed, err := listShared(f)
		must(t, err)
		asked, err := statShared(f)
		if errors.Is(err, errors.ErrUnsupported) {
			asked, err = want, nil // a kernel before 6.8
		}
		must(t, err)
		if listed != want || asked != want {
			t.Errorf("%s: listed as shared %v, asked %v, want %v", path, listed, asked, want)
		}
	}
}

func TestBindRefusesReadOnlySource(t *testing.T) {
	slot := newSlot(t, unix.MS_PRIVATE)
	ro := newSlot(t, unix.MS_PRIVATE)
	must(t, Bind(ro, workspace(t, "alice"), true))
	if err := Bind(slot, ro, false); !errors.Is(err, ErrReadOnly) {
		t.Fatalf("Bind of a read-only mount = %v, want ErrReadOnly", err)
	}
	must(t, Bind(slot, ro, true))
}

func TestNestedMountsAreNotBound(t *testing.T) {
	slot := newSlot(t, unix.MS_PRIVATE)
	c := startContainer(t, slot)
	// Shared, so that an attached clone would get later mounts.
	ws := newSlot(t, unix.MS_SHARED)
	for _, dir := range []string{"before", "after"} {
		must(t, os.Mkdir(filepath.Join(ws, dir), 0o755))
	}
	must(t, Bind(filepath.Join(ws, "before"), workspace(t, "somebody"), false))
	must(t, Bind(slot, ws, false))
	must(t, Bind(filepath.Join(ws, "after"), workspace(t, "somebody"), false))
	for _, path := range []string{"before/owner", "after/owner"} {
		c.wantErrno(t, "read", path, unix.ENOENT)
	}
}

func TestBindFileReadOnly(t *testing.T) {
	slot := newSlot(t, unix.MS_PRIVATE)
	file := filepath.Join(slot, "guest")
	must(t, os.WriteFile(file, nil, 0o755))
	source := filepath.Join(workspace(t, "alice"), "owner")
	must(t, BindFile(file, source, true))
	c := startContainer(t, slot)
	c.wantOut(t, "guest", "alice")
	c.wantErrno(t, "write", "guest", unix.EROFS)
}

func TestTmpfsLimitsApply(t *testing.T) {
	slot := newSlot(t, unix.MS_PRIVATE)
	var st unix.Stat_t
	must(t, unix.Stat(slot, &st))
	if st.Uid != 1000 || st.Gid != 1000 || st.Mode&0o7777 != 0o755 {
		t.Errorf("owner %d:%d, mode %o; want 1000:1000, 755", st.Uid, st.Gid, st.Mode&0o7777)
	}
	if err := os.WriteFile(filepath.Join(slot, "big"), make([]byte, 1<<20+1), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("write beyond the size = %v, want ENOSPC", err)
	}
	if err := MakeTmpfs(slot, Tmpfs{}); err == nil {
		t.Error("MakeTmpfs without a size succeeded, want an error")
	}
	wantMounted(t, slot, 1)
}

func TestSweepRemovesAllMounts(t *testing.T) {
	root := t.TempDir()
	must(t, Sweep(t.Context(), filepath.Join(root, "none"), time.Second))
	slot := filepath.Join(root, "slot with a blank")
	must(t, os.Mkdir(slot, 0o700))
	for range 2 {
		must(t, MakeTmpfs(slot, Tmpfs{Bytes: 1 << 20, Mode: 0o755}))
		must(t, os.Mkdir(filepath.Join(slot, "below"), 0o755))
		must(t, Bind(filepath.Join(slot, "below"), workspace(t, "alice"), false))
		must(t, Bind(slot, workspace(t, "bob"), false))
	}
	busy, err := os.Open(filepath.Join(slot, "owner"))
	must(t, err)
	defer busy.Close()
	neighbour := root + "-neighbour"
	must(t, os.Mkdir(neighbour, 0o700))
	defer os.Remove(neighbour)
	must(t, MakeTmpfs(neighbour, Tmpfs{Bytes: 4096, Mode: 0o755}))
	for range 2 {
		must(t, Sweep(t.Context(), root, 50*time.Millisecond))
		wantMounted(t, slot, 0)
		wantMounted(t, filepath.Join(slot, "below"), 0)
	}
	wantMounted(t, neighbour, 1)
	must(t, Sweep(t.Context(), neighbour, time.Second))
	wantMounted(t, neighbour, 0)
}

func TestMountedFollowsSymlinks(t *testing.T) {
	slot := newSlot(t, unix.MS_PRIVATE)
	link := filepath.Join(t.TempDir(), "state")
	must(t, os.Symlink(filepath.Dir(slot), link))
	wantMounted(t, filepath.Join(link, "slot"), 1)
	must(t, Bind(filepath.Join(link, "slot"), workspace(t, "alice"), false))
	wantMounted(t, slot, 2)
}

func TestSharedIsReadFromMountinfo(t *testing.T) {
	for line, want := range map[string]bool{
		`36 35 98:0 /mnt1 /a\040b\134c rw,noatime master:1 shared:2 - ext3 /dev/root rw`: true,
		`36 35 98:0 /mnt1 /a\040b\134c rw,noatime shared:2 master:1 - ext3 /dev/root rw`: true,
		`36 35 98:0 /mnt1 /a\040b\134c rw,noatime master:1 - ext3 shared:2 rw`:           false,
		`36 35 98:0 /mnt1 /a\040b\134c rw - ext3 shared:2 rw`:                            false,
	} {
		got, err := mountinfo.GetMountsFromReader(strings.NewReader(line+"\n"), mountinfo.PrefixFilter(`/a b\c`))
		if err != nil || len(got) != 1 || isShared(got[0]) != want {
			t.Errorf("mount of %q = %+v, %v; want one, shared %t", line, got, err, want)
		}
	}
}

func TestBelowFindsSpecialNames(t *testing.T) {
	slot := newSlot(t, unix.MS_PRIVATE)
	odd := filepath.Join(slot, "a b\\c\nd")
	must(t, os.Mkdir(odd, 0o700))
	must(t, MakeTmpfs(odd, Tmpfs{Bytes: 4096, Mode: 0o755}))
	wantMounted(t, odd, 1)
	if got, err := Below(slot); err != nil || !slices.Contains(got, odd) {
		t.Errorf("Below = %q, %v; want %q in it", got, err, odd)
	}
	must(t, Sweep(t.Context(), odd, time.Second))
	wantMounted(t, odd, 0)
}
