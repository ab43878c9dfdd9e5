package guestbin

import (
	"debug/elf"
	endian "encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func both(text string) map[string][]byte {
	return map[string][]byte{"guest": []byte(text), "guest-web": []byte("web")}
}

func TestWriteRepairsBrokenFiles(t *testing.T) {
	dir := t.TempDir()
	path, hash, err := write(dir, both("guest"))
	if err != nil || path != filepath.Join(dir, hash, "guest") {
		t.Fatalf("write = %q, %v; want %q and no error", path, err, filepath.Join(dir, hash, "guest"))
	}
	check := func() {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil || string(b) != "guest" {
			t.Fatalf("file = %q, %v; want %q and no error", b, err, "guest")
		}
		st, err := os.Stat(path)
		if err != nil || st.Mode() != 0o555 {
			t.Fatalf("Stat = %v, %v; want mode 0555 and no error", st, err)
		}
		entries, err := os.ReadDir(filepath.Dir(path))
		if err != nil || len(entries) != 2 {
			t.Fatalf("entries = %v, %v; want two and no error", entries, err)
		}
	}
	check()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if again, _, err := write(dir, both("guest")); err != nil || again != path {
			t.Fatalf("write over a broken file = %q, %v; want %q and no error", again, err, path)
		}
		check()
	}
}

func TestBytesSaysWhenThereIsNoGuest(t *testing.T) {
	b, err := Bytes()
	if err == nil && len(b) > 0 {
		return // built
	}
	if !errors.Is(err, ErrNone) {
		t.Errorf("Bytes: %v, want %v", err, ErrNone)
	}
}

func TestCheckMachineRefusesOtherArchitectures(t *testing.T) {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := checkMachine(program, runtime.GOARCH); err != nil {
		t.Errorf("checkMachine(this program, %q) = %v, want no error", runtime.GOARCH, err)
	}
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	if err := checkMachine(program, other); err == nil || !strings.Contains(err.Error(), "GOARCH="+other) {
		t.Errorf("checkMachine(this program, %q) = %v, want how to build it", other, err)
	}
	if err := checkMachine([]byte("text"), runtime.GOARCH); err == nil {
		t.Error("checkMachine(text) succeeded, want an error")
	}
}

// TestWriteRefusesGuestOfOtherArchitecture checks the start of every command that makes sandboxes:
// plain `go build` with another GOARCH embeds the guest of the last `make build`.
func TestWriteRefusesGuestOfOtherArchitecture(t *testing.T) {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	other := slices.Clone(program)
	machine := map[string]elf.Machine{"amd64": elf.EM_AARCH64, "arm64": elf.EM_X86_64}[runtime.GOARCH]
	endian.LittleEndian.PutUint16(other[18:], uint16(machine)) // e_machine
	for _, odd := range []string{"guest", "guest-web"} {
		built := fstest.MapFS{"bin/guest": {Data: program}, "bin/guest-web": {Data: program}}
		built["bin/"+odd] = &fstest.MapFile{Data: other}
		dir := filepath.Join(t.TempDir(), "guest")
		_, _, err := writeBuilt(dir, built)
		if err == nil || !strings.Contains(err.Error(), "build both with `make build GOARCH="+runtime.GOARCH+"`") {
			t.Errorf("writeBuilt with %s of %v = %v, want how to build it", odd, machine, err)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("writeBuilt with %s of %v wrote %s, want nothing", odd, machine, dir)
		}
	}
}

func TestSweepRemovesUnusedAfterAWeek(t *testing.T) {
	dir := t.TempDir()
	var hashes []string
	for _, text := range []string{"old", "new", "ours"} {
		_, hash, err := write(dir, both(text))
		if err != nil {
			t.Fatal(err)
		}
		hashes = append(hashes, hash)
	}
	if err := os.Mkdir(filepath.Join(dir, "other"), 0o700); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-sweepAge - time.Hour)
	for _, h := range []string{hashes[0], hashes[2]} {
		if err := os.Chtimes(filepath.Join(dir, h, "guest"), long, long); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := Sweep(dir, hashes[2])
	if err != nil || len(removed) != 1 || removed[0] != hashes[0] {
		t.Fatalf("Sweep = %v, %v; want %v and no error", removed, err, hashes[:1])
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 3 {
		t.Fatalf("entries left = %v, %v; want three and no error", left, err)
	}
	// Writing an existing file counts as use.
	if err := os.Chtimes(filepath.Join(dir, hashes[1], "guest"), long, long); err != nil {
		t.Fatal(err)
	}
	if _, _, err := write(dir, both("new")); err != nil {
		t.Fatal(err)
	}
	if removed, err := Sweep(dir, hashes[2]); err != nil || len(removed) != 0 {
		t.Fatalf("Sweep of new directories = %v, %v; want none and no error", removed, err)
	}
	if _, err := Sweep(filepath.Join(dir, "none"), ""); err != nil {
		t.Fatal(err)
	}
}
