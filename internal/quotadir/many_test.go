package quotadir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Hosts start with eight loop devices; the kernel creates more on demand.
func TestMountManyConcurrently(t *testing.T) {
	if testing.Short() {
		t.Skip("so many disks take some seconds")
	}
	const many = 100
	dir := base(t)
	errs := make([]error, many)
	each := func(do func(d, mine string) error) {
		t.Helper()
		var all sync.WaitGroup
		turn := make(chan struct{}, 8)
		for i := range many {
			all.Go(func() {
				turn <- struct{}{}
				defer func() { <-turn }()
				errs[i] = do(filepath.Join(dir, fmt.Sprint(i)), fmt.Sprint(i))
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	each(func(d, mine string) error {
		if err := os.Mkdir(d, 0o700); err != nil {
			return err
		}
		if err := Make(t.Context(), d, Options{Bytes: 8 << 20, Mechanism: Loop}); err != nil {
			return err
		}
		root, err := Mount(t.Context(), d)
		return errors.Join(err, os.WriteFile(filepath.Join(root, "mine"), []byte(mine), 0o600))
	})
	each(func(d, mine string) error {
		got, err := os.ReadFile(filepath.Join(d, mountDir, rootDir, "mine"))
		if err != nil || string(got) != mine {
			return fmt.Errorf("disk %s holds %q: %w", mine, got, err)
		}
		return Unmount(t.Context(), d)
	})
}

func BenchmarkMakeMountUnmount(b *testing.B) {
	dir := b.TempDir()
	i := 0
	for b.Loop() {
		d := filepath.Join(dir, fmt.Sprint(i))
		i++
		if err := os.Mkdir(d, 0o700); err != nil {
			b.Fatal(err)
		}
		if err := Make(b.Context(), d, Options{Bytes: 64 << 20, Mechanism: Loop}); err != nil {
			b.Fatal(err)
		}
		if _, err := Mount(b.Context(), d); err != nil {
			b.Fatal(err)
		}
		if err := Unmount(b.Context(), d); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMountUnmount(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		b.Fatal(err)
	}
	if err := Make(b.Context(), dir, Options{Bytes: 10 << 30, Mechanism: Loop}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Mount(b.Context(), dir); err != nil {
			b.Fatal(err)
		}
		if err := Unmount(b.Context(), dir); err != nil {
			b.Fatal(err)
		}
	}
}
