package build

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func TestParseBases(t *testing.T) {
	text := "# syntax=x\n# escape=`\nARG BASE=debian\nARG TAG=12\nFROM ${BASE}:${TAG} AS one\r\n" +
		"RUN echo a `\n  FROM nothing `\n  b\nfrom --platform=linux/amd64 golang AS Two\n" +
		"COPY --chown=0 --from=ONE /a /a\nCOPY --from=0 /a /a\nCOPY --from=busybox:1 `\n /a /b\n" +
		"FROM two\nFROM scratch\nFROM debian:13"
	d, err := Parse([]byte(text), map[string]string{"TAG": "13", "UNUSED": "x"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := d.Bases(), []string{"debian:13", "golang", "busybox:1"}; !slices.Equal(got, want) {
		t.Errorf("Bases = %q, want %q", got, want)
	}
	got := string(d.Renamed(map[string]string{"debian:13": "A", "golang": "B", "busybox:1": "C"}))
	want := strings.NewReplacer("${BASE}:${TAG}", "A", " golang ", " B ", "busybox:1", "C", "debian:13",
		"A").Replace(text)
	if got != want {
		t.Errorf("Renamed:\n%s\nwant:\n%s", got, want)
	}
	for text, why := range map[string]string{
		"":                                 "FROM not found",
		"FROM $X":                          "--build-arg X=",
		"FROM \\\n debian":                 "on one line",
		"FROM a\nCOPY \\\n --from=b /a /a": "first line",
		"FROM a\nCOPY --from=$X /a /a":     "must not contain a variable",
		"FROM a\nRUN --mount=from=b true":  "BuildKit",
		"FROM a b c":                       "on one line",
		"ARG X\nFROM $X":                   "not defined",
		"FROM ${X:?y}":                     "invalid variable",
	} {
		if _, err := Parse([]byte(text), nil); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), why) {
			t.Errorf("Parse(%q) = %v, want %q", text, err, why)
		}
	}
}

func FuzzDockerfile(f *testing.F) {
	f.Add("FROM a AS b\nCOPY --from=c x y\n")
	f.Add("ARG X=1\nFROM ${X:-2}\\\n")
	f.Add("FROM 0\nFROM ${0:+}")
	f.Add("# escape=`\nFROM a\nCOPY --fr`\nom=b / /\n")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := Parse([]byte(text), nil)
		if err != nil {
			return
		}
		same := map[string]string{}
		for _, b := range d.Bases() {
			same[b] = "x"
		}
		again, err := Parse(d.Renamed(same), nil)
		if err != nil {
			t.Fatalf("Parse of the renamed %q: %v", text, err)
		}
		for _, b := range again.Bases() {
			if b != "x" {
				t.Fatalf("Renamed of %q has the base %q, want only x", text, b)
			}
		}
	})
}

func TestPackSkipsIgnoredFiles(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"Dockerfile": "FROM a", ".dockerignore": "# comment\nsecret\n*.log\n!keep.log\nDockerfile\nnode_modules\n",
		"secret/key": "x", "a.log": "x", "keep.log": "x", "src/main.go": "x", "src/b.log": "x", "node_modules/x/y": "x",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	if err := Pack(t.Context(), dir, "Dockerfile", &packed); err != nil {
		t.Fatal(err)
	}
	raw := packed.Bytes()
	if text, err := ReadDockerfile(bytes.NewReader(raw), "Dockerfile"); err != nil || string(text) != "FROM a" {
		t.Errorf("ReadDockerfile = %q, %v; want FROM a", text, err)
	}
	var out bytes.Buffer
	if err := Rewrite(bytes.NewReader(raw), &out, "./Dockerfile", []byte("FROM other")); err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		if h.Name == "link" && (h.Typeflag != tar.TypeSymlink || h.Linkname != "/etc/passwd") {
			t.Errorf("Pack wrote %+v, want a link to /etc/passwd", h)
		}
		if b, _ := io.ReadAll(r); h.Name == "Dockerfile" && string(b) != "FROM other" {
			t.Errorf("Dockerfile = %q, want FROM other", b)
		}
	}
	// *.log matches only in the top directory.
	if want := []string{".dockerignore", "Dockerfile", "keep.log", "link", "src/", "src/b.log",
		"src/main.go"}; !slices.Equal(names, want) {
		t.Errorf("packed %q, want %q", names, want)
	}
	if err := Pack(t.Context(), dir, "../Dockerfile", io.Discard); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Pack with ../Dockerfile: %v, want InvalidArgument", err)
	}
}
