package userns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

func TestNewNamespaceMapsRangeAndBelongsToItsFirstID(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	const first = FirstID + 7*Size
	n, err := New(first)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if got, err := owner(n.File()); got != first || err != nil {
		t.Errorf("owner of the namespace = %d, %v; want %d", got, err, uint32(first))
	}
	out, err := exec.Command("nsenter", "--user="+n.Path(), "cat", "/proc/self/uid_map", "/proc/self/gid_map").Output()
	want := fmt.Sprintf("0 %d %d 0 %d %d", uint32(first), Size, uint32(first), Size)
	if got := strings.Join(strings.Fields(string(out)), " "); got != want || err != nil {
		t.Errorf("maps inside = %q, %v; want %q", got, err, want)
	}
	if own, err := Of(os.Getpid()); own != nil || err != nil {
		t.Errorf("Of(this process) = %v, %v; want nil: it is in the host's", own, err)
	}
}

// limit is the number of ranges in tests.
const limit = 8

func TestParseMap(t *testing.T) {
	for _, c := range []struct {
		text  string
		first uint32
		own   bool
		fails bool
	}{
		{text: "         0          0 4294967295\n"},
		{text: "         0 1879048192      65536\n", first: 1879048192, own: true},
		{text: "0 1879048192 1000\n", fails: true},
		{text: "5 1879048192 65536\n", fails: true},
		{text: "0 1879048192 65536\n70000 1 1\n", fails: true},
		{text: "", fails: true},
	} {
		first, own, err := parseMap(c.text)
		if first != c.first || own != c.own || (err != nil) != c.fails {
			t.Errorf("parseMap(%q) = %d, %v, %v; want %d, %v, error %v", c.text, first, own, err, c.first, c.own, c.fails)
		}
	}
}

// noted stands for a holder that notes its range.
func noted(uint32) error { return nil }

func TestDirectoryOfRangesGoesWithTheLast(t *testing.T) {
	r := Ranges{Dir: filepath.Join(t.TempDir(), "ids")}
	holder := t.TempDir()
	var claims sync.WaitGroup
	for range 8 {
		claims.Go(func() {
			for range 50 {
				first, err := r.Claim(holder, noted)
				if err == nil {
					err = r.Release(first, holder)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	claims.Wait()
	if _, err := os.Lstat(r.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("directory after the last Release: %v, want that it does not exist", err)
	}
}

func TestFailedNoteClaimsNothing(t *testing.T) {
	r := Ranges{Dir: filepath.Join(t.TempDir(), "ids"), Limit: 1}
	full := errors.New("disk is full")
	if _, err := r.Claim("/", func(uint32) error { return full }); !errors.Is(err, full) {
		t.Errorf("Claim = %v, want the error of note", err)
	}
	if _, err := r.Claim("/", noted); err != nil {
		t.Errorf("next Claim of the only range = %v, want nil", err)
	}
}

func TestRangesAreUniqueUntilReleased(t *testing.T) {
	r := Ranges{Dir: filepath.Join(t.TempDir(), "ids"), Limit: limit}
	holder := t.TempDir()
	seen := map[uint32]bool{}
	for range limit {
		first, err := r.Claim(holder, noted)
		if err != nil {
			t.Fatal(err)
		}
		if seen[first] {
			t.Fatalf("Claim = %d twice, want each range once", first)
		}
		seen[first] = true
	}
	if first, err := r.Claim(holder, noted); !errdefs.IsResourceExhausted(err) {
		t.Errorf("Claim without a free range = %d, %v; want ResourceExhausted", first, err)
	}
	const last = FirstID + (limit-1)*Size
	if err := r.Release(last, "/another"); err != nil {
		t.Errorf("Release(another's) = %v, want nil", err)
	}
	if first, err := r.Claim(holder, noted); err == nil {
		t.Errorf("Claim after a release by another = %d, want no range", first)
	}
	for range 2 {
		if err := r.Release(last, holder); err != nil {
			t.Errorf("Release = %v, want nil", err)
		}
	}
	if first, err := r.Claim(holder, noted); first != last || err != nil {
		t.Errorf("Claim after Release(%d) = %d, %v; want it again", uint32(last), first, err)
	}
}

func TestRangeOfRemovedHolderIsFree(t *testing.T) {
	r := Ranges{Dir: t.TempDir(), Limit: limit}
	gone := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	for range limit {
		if _, err := r.Claim(gone, noted); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	holder := t.TempDir()
	first, err := r.Claim(holder, noted)
	if err != nil {
		t.Fatalf("Claim of a range whose holder is gone = %v, want nil", err)
	}
	if has, err := os.Readlink(strings.TrimSuffix(r.Root(first), rootSuffix)); has != holder || err != nil {
		t.Errorf("holder of the range = %q, %v; want %q", has, err, holder)
	}
}

func TestRangeWithMountedRootIsNotFree(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	r := Ranges{Dir: t.TempDir(), Limit: 1}
	first, err := r.Claim("/gone", noted)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", r.Root(first), "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal(err)
	}
	got, err := r.Claim("/", noted)
	if uerr := unix.Unmount(r.Root(first), 0); uerr != nil {
		t.Fatal(uerr)
	}
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("Claim of a range whose root is mounted = %d, %v; want ResourceExhausted", got, err)
	}
	if _, err := r.Claim("/", noted); err != nil {
		t.Errorf("Claim after the unmount = %v, want nil", err)
	}
}

func TestRangeThatCannotBeExaminedIsSkipped(t *testing.T) {
	r := Ranges{Dir: t.TempDir(), Limit: 2}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Claim(filepath.Join(file, "holder"), noted); err != nil { // ENOTDIR
		t.Fatal(err)
	}
	if _, err := r.Claim("/", noted); err != nil {
		t.Errorf("Claim beside a range that cannot be examined = %v, want nil", err)
	}
	if _, err := r.Claim("/", noted); !errdefs.IsResourceExhausted(err) || !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("Claim of a range that cannot be examined = %v, want ResourceExhausted because of ENOTDIR", err)
	}
}

func TestAsMakesFilesAsUserOfNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	const first = FirstID + 9*Size
	n, err := New(first)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	dir := t.TempDir() // of root, mode 0700: writing there needs the capabilities
	for name, make := range map[string]func(func() error) error{
		"as":    func(f func() error) error { return As(n.File(), f) },
		"after": func(f func() error) error { return f() },
	} {
		path := filepath.Join(dir, name)
		if err := make(func() error { return os.Mkdir(path, 0o700) }); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]uint32{"as": first, "after": 0} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != want || st.Gid != want {
			t.Errorf("owner of %s = %d:%d, want %d", name, st.Uid, st.Gid, want)
		}
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		n, err := New(FirstID)
		if err != nil {
			b.Fatal(err)
		}
		_ = n.Close()
	}
}
