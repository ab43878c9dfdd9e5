package runtimetest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// markEnv is set in the hostile image's configuration and must not be set inside.
const markEnv = "HOSTILE_IMAGE"

// newHostileSandbox creates a sandbox from an image whose configuration sets everything an image
// can set. Its root has only bash and a setuid-root copy of it at /suid. Every call builds a
// separate image, so removing it does not affect others.
func (s *suite) newHostileSandbox(t *testing.T) *box {
	t.Helper()
	dir, err := os.MkdirTemp("", "rh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	image, err := hostileImage(dir, s.Image.Root)
	if err != nil {
		t.Fatal(err)
	}
	if s.RemoveImage != nil {
		t.Cleanup(func() { s.RemoveImage(t, image) })
	}
	if err := s.driver.Prepare(t.Context(), image); err != nil {
		t.Fatal(err)
	}
	return s.newSandbox(t, func(spec *runtime.Spec) { spec.Image, spec.Entrypoint = image, nil })
}

// checkNeutralConfig checks that nothing in an image's configuration has an effect.
func checkNeutralConfig(t *testing.T, s *suite) {
	t.Helper()
	b := s.newHostileSandbox(t)
	const want = "1000 /workspace\nunset unset unset\n"
	if o := b.runCommand(t,
		bash(`echo "$UID $PWD"; echo "${`+markEnv+`-unset} ${LD_PRELOAD-unset} ${BASH_ENV-unset}"`)); o.stdout != want {
		t.Errorf("user, working directory and environment of a command: %v, want the output %q", o, want)
	}
	if environ := b.readInitFile(t, "environ"); strings.Contains(environ, markEnv) ||
		strings.Contains(environ, "LD_PRELOAD") {
		t.Errorf("environment of PID 1 = %q, want nothing of the image's", environ)
	}
	if cmdline := b.readInitFile(t, "cmdline"); !strings.HasPrefix(cmdline, "/run/orchestrator/guest\x00init\x00") {
		t.Errorf("command line of PID 1 = %q, want the guest", cmdline)
	}
	// Engines create writable directories on their disk for declared volumes.
	for _, volume := range []string{"/data", "/var/lib/volume", "/suid.d"} {
		if o := b.runCommand(t, bash("echo x >"+volume+"/x")); o.exited(0) {
			t.Errorf("write to the image volume %s succeeds, want an error", volume)
		}
	}
	mounts := b.mustOutput(t, "while read -r line; do echo \"$line\"; done </proc/self/mountinfo")
	for line := range strings.Lines(mounts) {
		at := strings.Fields(line)[4]
		if isBelow(at, []string{"/data", "/var/lib/volume", "/suid.d", "/tmp", "/workspace"}) &&
			!strings.Contains(line, " - tmpfs ") && !b.isMemoryVolume(t, at) {
			t.Errorf("image volume is mounted, want only tmpfs there: %s", line)
		}
	}
	found, err := s.driver.List(t.Context(), "hostile-owner")
	if err != nil || len(found) > 0 {
		t.Errorf("List by the image's owner label = %v, %v; want none", found, err)
	}
	found, err = s.driver.List(t.Context(), s.owner)
	if err != nil || !slices.ContainsFunc(found,
		func(f runtime.Found) bool { return f.ID == b.spec.ID && f.Template == b.spec.Template && f.Running }) {
		t.Errorf("List = %+v, %v; want the running sandbox", found, err)
	}
	b.destroy(t)
}

// hostileConfig returns the image's configuration in JSON.
func hostileConfig(diff string) ([]byte, error) {
	return json.Marshal(map[string]any{
		"architecture": goruntime.GOARCH, "os": "linux", "created": "1970-01-01T00:00:00Z",
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{diff}},
		"config": map[string]any{
			"User": "4242:4242", "WorkingDir": "/data/nowhere", "Entrypoint": []string{"/suid", "-p"},
			"Cmd": []string{"-c", "exit 9"},
			"Env": []string{markEnv + "=1", "LD_PRELOAD=/evil.so", "BASH_ENV=/evil", "PATH=/evil", "LANG=evil",
				"EMPTY="},
			"Volumes": map[string]any{"/data": struct{}{}, "/var/lib/volume/": struct{}{}, "/suid.d": struct{}{},
				"/tmp": struct{}{}, "/workspace": struct{}{}},
			"Healthcheck":  map[string]any{"Test": []string{"CMD-SHELL", "echo x >/data/health"}, "Interval": 1000000000},
			"ExposedPorts": map[string]any{"80/tcp": struct{}{}}, "StopSignal": "SIGWINCH", "Shell": []string{"/suid"},
			"Labels": map[string]string{
				"orchestrator.owner": "hostile-owner", "orchestrator.id": "hostile-id", "orchestrator.template": "hostile",
				"orchestrator.mode": "hostile",
			},
			"OnBuild": []string{"RUN true"}, "ArgsEscaped": true,
		},
	})
}

// hostileImage builds the image in dir, unpacked and as a docker-archive.
func hostileImage(dir, from string) (runtime.Image, error) {
	root := filepath.Join(dir, "root")
	if err := hostileRoot(root, from); err != nil {
		return runtime.Image{}, fmt.Errorf("make the hostile image: %w", err)
	}
	layer, err := tarOf(root)
	if err != nil {
		return runtime.Image{}, fmt.Errorf("make the hostile image: %w", err)
	}
	config, err := hostileConfig("sha256:" + hash(layer))
	if err != nil {
		return runtime.Image{}, fmt.Errorf("make the hostile image: %w", err)
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": hash(config) + ".json", "Layers": []string{"layer.tar"}}})
	if err != nil {
		return runtime.Image{}, fmt.Errorf("make the hostile image: %w", err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range []struct {
		name string
		text []byte
	}{{"manifest.json", manifest}, {hash(config) + ".json", config}, {"layer.tar", layer}} {
		err = errors.Join(err, w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.text)),
			Typeflag: tar.TypeReg}))
		if err == nil {
			_, err = w.Write(f.text)
		}
	}
	archive := filepath.Join(dir, "image.tar")
	if err = errors.Join(err, w.Close(), os.WriteFile(archive, out.Bytes(), 0o600)); err != nil {
		return runtime.Image{}, fmt.Errorf("make the hostile image: %w", err)
	}
	return runtime.Image{Ref: "hostile", ID: "sha256:" + hash(config), Root: root, Archive: archive}, nil
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// hostileRoot copies bash and its libraries from another root.
func hostileRoot(root, from string) error {
	for _, dir := range []string{"bin", "etc", "data", "var/lib/volume", "suid.d", "usr/bin", "usr/lib", "lib", "lib64"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	shell, err := os.ReadFile(filepath.Join(from, "bin", "bash"))
	if err != nil {
		return err
	}
	for name, mode := range map[string]os.FileMode{"bin/bash": 0o755, "suid": 0o755 | os.ModeSetuid} {
		at := filepath.Join(root, name)
		if err := errors.Join(os.WriteFile(at, shell, 0o755), os.Chmod(at, mode)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(root, "etc", "suite"), []byte(randomName()), 0o644); err != nil {
		return err
	}
	passwd := "root::0:0:root:/:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n"
	if err := os.WriteFile(filepath.Join(root, "etc", "passwd"), []byte(passwd), 0o644); err != nil {
		return err
	}
	return copyLibraries(root, from, shell, map[string]bool{})
}

// copyLibraries copies the loader and libraries of a program to the same paths under root.
func copyLibraries(root, from string, program []byte, have map[string]bool) error {
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return err
	}
	names, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			text, err := io.ReadAll(p.Open())
			if err != nil {
				return err
			}
			names = append(names, strings.TrimRight(string(text), "\x00"))
		}
	}
	for _, name := range names {
		if have[name] {
			continue
		}
		have[name] = true
		at, text, err := findLibrary(from, name)
		if err != nil {
			return err
		}
		to := filepath.Join(root, at)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, 0o755)); err != nil {
			return err
		}
		if err := copyLibraries(root, from, text, have); err != nil {
			return err
		}
	}
	return nil
}

// findLibrary finds a library by path or name in a root whose /lib may be a symlink to usr/lib.
func findLibrary(from, name string) (string, []byte, error) {
	places := []string{name}
	if !path.IsAbs(name) {
		places = []string{
			"/lib/x86_64-linux-gnu/" + name, "/lib/aarch64-linux-gnu/" + name, "/lib64/" + name, "/lib/" + name,
		}
	}
	for _, at := range places {
		if text, err := os.ReadFile(filepath.Join(from, at)); err == nil {
			return at, text, nil
		}
	}
	return "", nil, fmt.Errorf("library %s: %w", name, fs.ErrNotExist)
}

// tarOf returns a tar archive of a directory.
func tarOf(root string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := filepath.WalkDir(root, func(at string, d fs.DirEntry, err error) error {
		if err != nil || at == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(at, root+"/")
		h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), Typeflag: tar.TypeDir}
		if info.Mode()&os.ModeSetuid != 0 {
			h.Mode |= 0o4000
		}
		if d.IsDir() {
			return w.WriteHeader(h)
		}
		text, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		h.Typeflag, h.Size = tar.TypeReg, int64(len(text))
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	})
	return out.Bytes(), errors.Join(err, w.Close())
}
