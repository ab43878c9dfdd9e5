package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Hosts come with eight loop devices; the kernel makes more as they are asked for.
func TestManyAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("300 disks take some seconds")
	}
	const many = 300
	dir := base(t)
	errs := make([]error, many)
	var all sync.WaitGroup
	turn := make(chan struct{}, 8)
	for i := range many {
		all.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			d := filepath.Join(dir, fmt.Sprint(i))
			if errs[i] = os.Mkdir(d, 0o700); errs[i] != nil {
				return
			}
			if errs[i] = Make(t.Context(), d, Options{Bytes: 8 << 20, Mechanism: Loop}); errs[i] != nil {
				return
			}
			root, err := Mount(t.Context(), d)
			errs[i] = errors.Join(err, os.WriteFile(filepath.Join(root, "mine"), []byte(fmt.Sprint(i)), 0o600))
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for i := range many {
		d := filepath.Join(dir, fmt.Sprint(i))
		got, err := os.ReadFile(filepath.Join(d, mountDir, rootDir, "mine"))
		if err != nil || string(got) != fmt.Sprint(i) {
			t.Fatalf("disk %d holds %q, %v", i, got, err)
		}
		unmounted(t, d)
	}
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
