package livemount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/userns"
)

// TestOverlayOfClonesMapsOwners mounts an overlay whose layers show their owners to a user
// namespace, in the way of this kernel and in that of older ones.
func TestOverlayOfClonesMapsOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	user, err := userns.New(userns.FirstID)
	must(t, err)
	defer user.Close()
	for name, with := range map[string]func(string, []string, Options, func([]*os.File) error) error{
		"this kernel": WithClones, "older kernels": withAttached,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			upper, lower, at := filepath.Join(dir, "upper"), filepath.Join(dir, "lower"), filepath.Join(dir, "at")
			for _, d := range []string{upper, lower, at} {
				must(t, os.Mkdir(d, 0o755))
			}
			must(t, os.Chown(lower, 7, 8))
			must(t, os.WriteFile(filepath.Join(lower, "file"), nil, 0o644))
			must(t, os.Chown(filepath.Join(lower, "file"), 1000, 1001))
			mount := func(layers []*os.File) error {
				data := fmt.Sprintf("lowerdir=/proc/self/fd/%d:/proc/self/fd/%d", layers[0].Fd(), layers[1].Fd())
				return unix.Mount("overlay", at, "overlay", unix.MS_RDONLY, data)
			}
			must(t, with(at, []string{upper, lower}, Options{ReadOnly: true, UserNS: user.File()}, mount))
			defer func() {
				for n, err := Mounted(at); n > 0 && err == nil; n, err = Mounted(at) {
					must(t, Unbind(t.Context(), at))
				}
			}()
			var st unix.Stat_t
			must(t, unix.Lstat(filepath.Join(at, "file"), &st))
			if st.Uid != userns.FirstID+1000 || st.Gid != userns.FirstID+1001 {
				t.Errorf("owner of the file in the overlay = %d:%d, want %d:%d", st.Uid, st.Gid, userns.FirstID+1000,
					userns.FirstID+1001)
			}
			failed := with(at, []string{upper, lower}, Options{UserNS: user.File()},
				func([]*os.File) error { return unix.EINVAL })
			if failed == nil {
				t.Error("a mount that fails = nil, want its error")
			}
			before, err := Mounted(at)
			must(t, err)
			if want := map[string]int{"this kernel": 1, "older kernels": 3}[name]; before != want {
				t.Errorf("mounts after one overlay and one failure = %d, want %d", before, want)
			}
		})
	}
}

func TestBindForUserNamespaceOnOverlayIsRefused(t *testing.T) {
	slot := newSlot(t, unix.MS_PRIVATE)
	user, err := userns.New(userns.FirstID)
	must(t, err)
	defer user.Close()
	dir := t.TempDir()
	at := filepath.Join(dir, "at")
	for _, d := range []string{at, filepath.Join(dir, "a"), filepath.Join(dir, "b")} {
		must(t, os.Mkdir(d, 0o755))
	}
	must(t, unix.Mount("overlay", at, "overlay", unix.MS_RDONLY, "lowerdir="+dir+"/a:"+dir+"/b"))
	defer func() { must(t, Unbind(t.Context(), at)) }()
	err = BindFor(slot, at, Options{ReadOnly: true, UserNS: user.File()})
	if !errors.Is(err, ErrNoIDMap) {
		t.Errorf("BindFor(an overlay) = %v, want ErrNoIDMap", err)
	}
	wantMounted(t, slot, 1)
}
