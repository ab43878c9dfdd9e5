package images

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

type hostileLayer struct {
	name  string
	items []item
	want  string // the tree
	err   string // or what the error says
}

// escapingLayers returns layers that try to reach victim, a file in outside.
func escapingLayers(outside, victim string) []hostileLayer {
	up := strings.Repeat("../", 40) + victim[1:]
	return []hostileLayer{
		{"parent in the name", []item{reg("../x", "x")}, "", "contains .."},
		{"parent inside the name", []item{reg("a/../../x", "x")}, "", "contains .."},
		{"parent at the end", []item{dir("a/..")}, "", "contains .."},
		{"absolute name", []item{reg(victim, "x"), reg("/a", "a")}, "", ""},
		{"file through an absolute link", []item{sym("l", outside), reg("l/victim", "x")}, "", ""},
		{"file through a relative link", []item{sym("l", strings.TrimSuffix(up, "/victim")), reg("l/victim", "x")},
			"", ""},
		{"file over a link to outside", []item{sym("l", victim), reg("l", "x")}, "l = x\n", ""},
		{"link swapped in for a directory", []item{dir("d"), reg("d/a", "a"), sym("d", outside), reg("d/victim", "x")},
			"",
			""},
		{"directory swapped in for a link", []item{sym("d", outside), dir("d"), reg("d/victim", "x")},
			"d/\nd/victim = x\n", ""},
		{"hard link to outside", []item{hard("h", up)}, "", "contains .."},
		{"hard link to an absolute path", []item{hard("h", victim)}, "", "no such file"},
		{"hard link through a link", []item{sym("l", outside), hard("h", "l/victim")}, "", "no such file"},
		{"hard link to a link, then written", []item{sym("l", victim), hard("h", "l"), reg("h", "x")},
			"h = x\nl -> " + victim + "\n", ""},
		{"hard link to a directory", []item{dir("d"), hard("h", "d")}, "", "not a file"},
		{"hard link to nothing", []item{dir("d"), hard("h", "d/x")}, "", "not found"},
	}
}

// oddLayers returns layers with unusual entries. outside is a directory that they must not change.
func oddLayers(outside string) []hostileLayer {
	long := strings.Repeat("n", 256)
	return []hostileLayer{
		{"hard link to itself", []item{reg("a", "a"), hard("a", "./a")}, "", "to itself"},
		{"link loop", []item{sym("a", "b"), sym("b", "a"), reg("a/x", "x")}, "", "symbolic links"},
		{"link to itself below", []item{sym("a", "a/b"), reg("a/x", "x")}, "", "symbolic links"},
		{"file below a file", []item{reg("a", "a"), reg("a/x", "x")}, "", "not a directory"},
		{"duplicate files", []item{reg("a", "1"), reg("a", "22"), reg("./a", "333")}, "a = 333\n", ""},
		{"duplicates of all kinds", []item{reg("a", "1"), dir("a"), reg("a/b", "2"), sym("a", "c"), reg("a", "3")},
			"a = 3\n", ""},
		{"devices", []item{reg("x", "x"), {tar.Header{Typeflag: tar.TypeBlock, Name: "x", Devmajor: 8}, ""},
			{tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}, ""},
			{tar.Header{Typeflag: tar.TypeFifo, Name: "fifo"}, ""}, reg("a", "a")}, "a = a\n", ""},
		{"unknown type", []item{{tar.Header{Typeflag: 'Z', Name: "z"}, ""}}, "", "unknown type 'Z'"},
		{"the root as a file", []item{reg("a/.", "x"), reg(".", "x")}, "", "root must be a directory"},
		{"the root as a link", []item{sym(".", "/etc")}, "", "root must be a directory"},
		{"long part of a name", []item{reg(long, "x")}, "", "longer than 255"},
		{"long name", []item{reg(strings.Repeat("d/", 2100)+"x", "x")}, "", "longer than 4096"},
		{"deep name", []item{reg(strings.Repeat("d/", 300)+"x", "x")}, "", "deeper than 256"},
		{"deep by links", []item{dir(strings.Repeat("d/", 200)), sym("l", strings.Repeat("d/", 200)),
			reg("l/"+strings.Repeat("e/", 100)+"x", "x")}, "", "deeper than 256"},
		{"whiteout of nothing", []item{reg(".wh.", "")}, "", "empty whiteout"},
		{"whiteout of the directory itself", []item{reg("a/.wh..", "")}, "", "empty whiteout"},
		{"whiteout of the parent directory", []item{reg("a/.wh...", "")}, "", "empty whiteout"},
		{"whiteout through a link", []item{sym("l", outside), reg("l/.wh.victim", "")}, "l -> " + outside + "\n", ""},
		{"opaque through a link", []item{sym("l", outside), reg("l/.wh..wh..opq", "")}, "l -> " + outside + "\n", ""},
		{"mount point as a link to outside", []item{sym("workspace", outside), sym("tmp", "/etc"), reg("proc", "x")},
			"", ""},
		{"invalid UTF-8", []item{reg("\xff\xfe", "x")}, "\xff\xfe = x\n", ""},
	}
}

// Each layer is refused with a reason, or gives exactly the tree.
func TestHostileLayersStayInTheirRoot(t *testing.T) {
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range append(escapingLayers(outside, victim), oddLayers(outside)...) {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t, Limits{})
			dir, err := root(t, s, mkTar(t, c.items...))
			switch {
			case c.err != "":
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
			case err != nil:
				t.Errorf("unpacking the layer = %v, want no error", err)
			case c.want != "":
				if diff := cmp.Diff(c.want, listing(t, dir)); diff != "" {
					t.Errorf("files in the root (-want +got):\n%s", diff)
				}
			}
			if err == nil {
				for _, m := range mountPoints {
					if info, err := os.Lstat(filepath.Join(dir, m)); err != nil || !info.IsDir() {
						t.Errorf("mount point %s: %v, %v; want a directory", m, info, err)
					}
				}
			}
			if raw, err := os.ReadFile(victim); err != nil || string(raw) != "untouched" {
				t.Fatalf("file outside = %q, %v; want untouched", raw, err)
			}
			if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
				t.Fatalf("files outside = %v, %v; want 1", entries, err)
			}
			checkNoLeftovers(t, s)
		})
	}
}

func TestModesAndOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	s := newStore(t, Limits{})
	suid := reg("suid", "x")
	suid.Mode, suid.Uid, suid.Gid = 0o6755, 12, 34
	suid.PAXRecords = map[string]string{
		"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20" + strings.Repeat("\x00", 14),
		"SCHILY.xattr.user.a":              "b",
	}
	sticky := dir("sticky")
	sticky.Mode = 0o7777
	private := dir("./")
	private.Mode = 0o700
	dir, err := root(t, s, mkTar(t, private, suid, sticky))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"suid": "-rwxr-xr-x 12:34", "sticky": "dtrwxrwxrwx 0:0",
		".": "drwxr-xr-x 0:0"} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		stat := info.Sys().(*syscall.Stat_t)
		if got := fmt.Sprintf("%v %d:%d", info.Mode(), stat.Uid, stat.Gid); got != want {
			t.Errorf("%s has mode and owner %s, want %s", name, got, want)
		}
	}
	if n, err := syscall.Listxattr(filepath.Join(dir, "suid"), nil); n != 0 || err != nil {
		t.Errorf("extended attributes: %d bytes, %v; want none", n, err)
	}
	bad := reg("a", "a")
	bad.Uid = 1 << 33
	if _, err := root(t, s, mkTar(t, bad)); !errdefs.IsInvalidArgument(err) {
		t.Errorf("owner over 32 bits: %v, want InvalidArgument", err)
	}
}

func TestModifiedOCIBlobsAreRefused(t *testing.T) {
	l := mkTar(t, reg("a", "aaaa"))
	for i := range mkOCI(t, "a:1", mkConfig(t, nil, l), nil, l) {
		items := mkOCI(t, "a:1", mkConfig(t, nil, l), nil, l)
		if !strings.HasPrefix(items[i].Name, "blobs/") {
			continue
		}
		content := []byte(items[i].content)
		items[i].content = string(spoil(content, len(content)/2))
		s := newStore(t, Limits{})
		if _, err := s.Import(t.Context(), bytes.NewReader(mkTar(t, items...)),
			"test"); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s with a byte changed: %v, want InvalidArgument", items[i].Name, err)
		}
		checkNoLeftovers(t, s)
	}
}

func TestLimits(t *testing.T) {
	bomb := zip(t, mkTar(t, reg("zeros", strings.Repeat("\x00", 4<<20))))
	sparse := mkTar(t, reg("a", "a"), reg("b", "b"), reg("c", "c"))
	for _, c := range []struct {
		name    string
		limits  Limits
		archive []byte
	}{
		{"gzip bomb", Limits{Bytes: 1 << 20}, bomb},
		{"entries", Limits{Entries: 2}, sparse},
		{"layers", Limits{Layers: 1}, mkDocker(t, "a:1", mkConfig(t, nil, sparse, sparse), false, sparse, sparse)},
		{"entries of all layers", Limits{Entries: 5},
			mkDocker(t, "a:1", mkConfig(t, nil, sparse, sparse), true, sparse, sparse)},
		{"implied directories", Limits{Entries: 20},
			mkTar(t, reg(strings.Repeat("a/", 15)+"f", ""), reg(strings.Repeat("b/", 15)+"f", ""))},
		{"links through links", Limits{Entries: 100}, mkTar(t, longWay(30)...)},
		{"repeated whiteouts", Limits{Entries: 2000}, mkTar(t, repeatedWhiteouts(900)...)},
	} {
		s := newStore(t, c.limits)
		if _, err := root(t, s, c.archive); !errdefs.IsResourceExhausted(err) {
			t.Errorf("%s: %v, want ResourceExhausted", c.name, err)
		}
		checkNoLeftovers(t, s)
	}
}

// longWay returns links that each lead down and up again through the previous link, and a file
// behind the last one.
func longWay(links int) []item {
	deep := strings.Repeat("/a", 100)
	items := []item{dir(deep + "/x")}
	for i := range links {
		target := deep
		if i > 0 {
			target = fmt.Sprintf("/l%d", i-1)
		}
		items = append(items, sym(fmt.Sprintf("l%d", i), target+strings.Repeat("/x/..", 700)))
	}
	return append(items, reg(fmt.Sprintf("l%d/f", links-1), ""))
}

// repeatedWhiteouts returns a directory with n files and n opaque markers, each of which scans it.
func repeatedWhiteouts(n int) (items []item) {
	for i := range n {
		items = append(items, reg(fmt.Sprintf("a/%d", i), ""))
	}
	return append(items, slices.Repeat([]item{reg("a/.wh..wh..opq", "")}, n)...)
}

// Resolves a link to a long path, and below it a link to another one.
func TestResolvedPathLength(t *testing.T) {
	long := strings.TrimSuffix(strings.Repeat(strings.Repeat("d", 240)+"/", 14), "/")
	s := newStore(t, Limits{})
	if _, err := root(t, s, mkTar(t, dir(long), sym("l", long), reg("l/f", ""))); err != nil {
		t.Fatal(err)
	}
	_, err := root(t, s, mkTar(t, dir(long), sym("l", long), dir("l/"+long), sym("m", "l/"+long), reg("m/f", "")))
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "longer than 4096") {
		t.Errorf("resolved path over 4096 bytes: %v, want InvalidArgument", err)
	}
	checkNoLeftovers(t, s)
}

func TestFullDiskLeavesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	mount := t.TempDir()
	if err := syscall.Mount("tmpfs", mount, "tmpfs", 0, "size=3m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(mount, 0); err != nil {
			t.Error(err)
		}
	})
	s, err := Open(Options{Dir: filepath.Join(mount, "images")})
	if err != nil {
		t.Fatal(err)
	}
	big := mkTar(t, reg("big", strings.Repeat("x", 2<<20)))
	path := filepath.Join(t.TempDir(), "big.tar")
	if err := os.WriteFile(path, big, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Import(t.Context(), bytes.NewReader(big), "big"); !errdefs.IsResourceExhausted(err) ||
		!errors.Is(err, syscall.ENOSPC) {
		t.Errorf("import of a stream: %v, want ResourceExhausted", err)
	}
	checkNoLeftovers(t, s)
	image, err := s.ImportPath(t.Context(), path, "big") // fits: no temporary copy
	if err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve("big")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.Root(t.Context(), resolved); !errdefs.IsResourceExhausted(err) {
			t.Errorf("Root = %v, want ResourceExhausted", err)
		}
		checkNoLeftovers(t, s)
	}
	if err := s.Remove(t.Context(), image.ID); err != nil {
		t.Error(err)
	}
	checkNoLeftovers(t, s)
}

// hookContext is a context that calls do whenever Err is called.
type hookContext struct {
	context.Context
	do func()
}

func (m hookContext) Err() error {
	m.do()
	return m.Context.Err()
}

// A file that changes during its import must not be remembered with the digest of other content.
func TestArchiveChangedDuringImport(t *testing.T) {
	good, evil := mkTar(t, reg("a", "good")), mkTar(t, reg("a", "evil"))
	want, err := newStore(t, Limits{}).Import(t.Context(), bytes.NewReader(good), "good:1")
	if err != nil {
		t.Fatal(err)
	}
	for after := range 8 {
		s := newStore(t, Limits{})
		path := filepath.Join(t.TempDir(), "a.tar")
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
		asked := 0
		ctx := hookContext{t.Context(), func() {
			if asked++; asked == after {
				if err := os.WriteFile(path, evil, 0o600); err != nil {
					t.Error(err)
				}
			}
		}}
		if _, err := s.ImportPath(ctx, path, "theirs:1"); err != nil {
			t.Fatal(err)
		}
		got, err := s.Import(t.Context(), bytes.NewReader(good), "ours:1")
		if err != nil || got.ID != want.ID {
			t.Errorf("changed at call %d: %s has id %s, want %s (%v)", after, got.Refs, got.ID, want.ID, err)
		}
	}
}

// An archive that expands to many times its size is stopped before the reserve for workspaces is
// used.
func TestWorkspaceReserveStaysFree(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	mount := t.TempDir()
	if err := syscall.Mount("tmpfs", mount, "tmpfs", 0, "size=40m"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(mount, 0); err != nil {
			t.Error(err)
		}
	})
	s, err := Open(Options{Dir: filepath.Join(mount, "images")})
	if err != nil {
		t.Fatal(err)
	}
	zeros := func(n int) []byte { return zip(t, mkTar(t, reg("zeros", strings.Repeat("\x00", n)))) }
	stopped := func(what string, err error) {
		t.Helper()
		if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "reserve for workspaces") {
			t.Errorf("%s: %v, want ResourceExhausted", what, err)
		}
		checkNoLeftovers(t, s)
	}
	layer := mkTar(t, reg("zeros", strings.Repeat("\x00", 36<<20)))
	_, err = s.Import(t.Context(), bytes.NewReader(zip(t, layer)), "rootfs")
	stopped("a rootfs", err)
	_, err = s.Import(t.Context(), bytes.NewReader(mkDocker(t, "a:1", mkConfig(t, nil, layer), true, layer)), "")
	stopped("a layer", err)
	// The archive fits, but not the unpacked root next to it.
	docker := mkTar(t, reg("zeros", strings.Repeat("\x00", 20<<20)))
	_, err = root(t, s, mkDocker(t, "a:1", mkConfig(t, nil, docker), true, docker))
	stopped("a root", err)
	if _, err := root(t, s, zeros(1<<20)); err != nil {
		t.Errorf("unpacking an image that fits = %v, want no error", err)
	}
}

func TestCancelledContextLeavesNothing(t *testing.T) {
	s := newStore(t, Limits{})
	why := errors.New("cancelled by the test")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := s.Import(ctx, bytes.NewReader(mkTar(t, reg("a", "a"))), "a"); !errors.Is(err, why) {
		t.Errorf("Import = %v, want the cause of the context", err)
	}
	checkNoLeftovers(t, s)
	image, err := s.Import(t.Context(), bytes.NewReader(mkTar(t, reg("a", "a"))), "a")
	if err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(image.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Root(ctx, resolved); !errors.Is(err, why) {
		t.Errorf("Root = %v, want the cause of the context", err)
	}
	checkNoLeftovers(t, s)
}
