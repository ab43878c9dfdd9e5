package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// archive returns a tar file with these files, in order.
func archive(t *testing.T, files ...[2]string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f[0], Size: int64(len(f[1])),
			Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "a.tar")
	if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestReadArchive(t *testing.T) {
	const config = `{"rootfs":{"diff_ids":["sha256:aa","sha256:bb"]}}`
	sum := sha256.Sum256([]byte(config))
	got, err := readArchive(archive(t, [2]string{"l/layer.tar", "xxxx"}, [2]string{"c.json", config},
		[2]string{"manifest.json", `[{"Config":"c.json","RepoTags":["a:b"],"Layers":["l/layer.tar"]}]`}))
	if err != nil || got.config != "sha256:"+hex.EncodeToString(sum[:]) || len(got.layers) != 2 || got.tags[0] != "a:b" {
		t.Fatalf("readArchive = %+v, %v; want config sha256:%x, two layers, tag a:b and no error", got, err, sum)
	}
	for name, file := range map[string]string{
		"no manifest":    archive(t, [2]string{"c.json", config}),
		"two images":     archive(t, [2]string{"manifest.json", `[{"Config":"c.json"},{"Config":"c.json"}]`}),
		"no config":      archive(t, [2]string{"manifest.json", `[{"Config":"c.json"}]`}),
		"no JSON":        archive(t, [2]string{"manifest.json", `{`}),
		"not an archive": archive(t),
	} {
		if _, err := readArchive(file); !errdefs.IsInvalidArgument(err) {
			t.Errorf("readArchive with %s: %v, want InvalidArgument", name, err)
		}
	}
}

func TestMessagesReturnsErrors(t *testing.T) {
	if said, err := messages(strings.NewReader(`{"stream":"Loaded image: a\n"}` + `{"status":"sha256:1"}`)); err != nil ||
		len(said) != 2 || said[1] != "sha256:1" {
		t.Fatalf("messages = %q, %v; want two, the second sha256:1, and no error", said, err)
	}
	if _, err := messages(strings.NewReader(`{"error":"no space left"}`)); err == nil ||
		!strings.Contains(err.Error(), "no space left") {
		t.Fatalf("messages with an error: %v, want the engine's text", err)
	}
	if _, err := messages(strings.NewReader(`{"stream":"cut`)); err == nil {
		t.Fatal("a truncated answer succeeded, want error")
	}
}

func TestProcessIsKilledAndWaitedFor(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-waited })
	pid := cmd.Process.Pid
	own, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openProcess(pid, "test", "not-its-cgroup"); !errdefs.IsNotFound(err) {
		t.Fatalf("openProcess in another container: %v, want NotFound", err)
	}
	p, err := openProcess(pid, "test", string(own))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	cut, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errSlow)
	defer cancel()
	if err := p.Wait(cut); !errors.Is(err, errSlow) {
		t.Fatalf("Wait that was cut: %v, want %v", err, errSlow)
	}
	over := make(chan error, 1)
	go func() {
		q, err := openProcess(pid, "test", string(own))
		if err == nil {
			err = q.Wait(t.Context())
			q.Close()
		}
		over <- err
	}()
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-over:
		if err != nil && !errdefs.IsNotFound(err) {
			t.Fatalf("Wait: %v, want NotFound or no error", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("Wait did not return within 30s, want it to see the end of the process")
	}
	waited <- <-waited
	if err := p.Kill(); err != nil {
		t.Fatalf("a second kill: %v", err)
	}
	if _, err := openProcess(pid, "test", string(own)); !errdefs.IsNotFound(err) {
		t.Fatalf("openProcess of an ended process: %v, want NotFound", err)
	}
}

// frame returns a piece of an exec's output as the engine sends it.
func frame(stream byte, text string) []byte {
	b := make([]byte, 8, 8+len(text))
	b[0] = stream
	binary.BigEndian.PutUint32(b[4:], uint32(len(text)))
	return append(b, text...)
}

func TestPipesReadStdoutAndReportStderr(t *testing.T) {
	host, engine := net.Pipe()
	p := newPipes(client.NewHijackedResponse(host, ""))
	defer func() { _ = p.Close() }()
	go func() {
		_, _ = engine.Write(append(append(frame(1, "hello"), frame(2, "bridge: no guest")...), frame(1, " world")...))
		_ = engine.Close()
	}()
	b := make([]byte, 11)
	if _, err := io.ReadFull(p, b); err != nil || string(b) != "hello world" {
		t.Fatalf("read %q, %v; want %q and no error", b, err, "hello world")
	}
	if _, err := p.Read(b); err == nil || !strings.Contains(err.Error(), "no guest") {
		t.Fatalf("Read at the end: %v, want an error with %q", err, "no guest")
	}
}

func TestClosingPipesUnblocksARead(t *testing.T) {
	host, engine := net.Pipe()
	defer func() { _ = engine.Close() }()
	p := newPipes(client.NewHijackedResponse(host, ""))
	read := make(chan error, 1)
	go func() { _, err := p.Read(make([]byte, 1)); read <- err }()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-read:
		if err == nil {
			t.Fatal("read of closed pipes succeeded, want error")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("read of closed pipes did not return within 30s, want error")
	}
}
