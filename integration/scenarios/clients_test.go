//go:build integration

package scenarios

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	hostexec "os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// clientsSeed adds the image with the programs that fetch files.
var clientsSeed = harness.Seed{More: []string{harness.EnvClients}}

// clients are programs, each with a command that fetches the artefact of a site and prints some of
// it. Where a program prints too little about a denial, the command has its verbose option. No
// command names the proxy: programs find it in the environment.
var clients = []struct{ name, command, want string }{
	{"curl", `curl -sSv --cacert $CA https://$SITE/file`, "artefact of curl"},
	{"curl of plain HTTP", `curl -sS http://$PLAIN/file`, "artefact of curl"},
	{"git", `GIT_CURL_VERBOSE=1 GIT_SSL_CAINFO=$CA git clone -q https://$SITE/repo.git && cat repo/artefact`,
		"artefact of git"},
	{"pip", `pip3 download -q --disable-pip-version-check --retries 1 --no-deps --cert $CA --index-url https://$SITE/simple artefact &&
python3 -c 'import zipfile; print(zipfile.ZipFile("artefact-1.0-py3-none-any.whl").read("artefact.py"))'`, "artefact of pip"},
	{"npm", `npm_config_cafile=$CA npm --fetch-retries 0 --loglevel verbose --registry https://$SITE/npm/ pack artefact &&
tar -xzOf artefact-1.0.0.tgz package/index.js`, "artefact of npm"},
	{"apt", `mkdir -p s/lists/partial c/archives/partial e && echo "deb [trusted=yes] http://$PLAIN/apt ./" > e/list &&
A="apt-get -q -o Acquire::Retries=0 -o Acquire::Languages=none -o Debug::NoLocking=1 -o APT::Update::Error-Mode=any" &&
A="$A -o Dir::State=$PWD/s -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache=$PWD/c" &&
A="$A -o Dir::Etc::sourcelist=$PWD/e/list -o Dir::Etc::sourceparts=/nowhere" &&
$A update && $A download artefact && dpkg-deb --fsys-tarfile artefact_1.0_all.deb | tar -xO ./usr/share/artefact`, "artefact of apt"},
	{"go", `export SSL_CERT_FILE=$CA GOPATH=$PWD/go GOCACHE=$PWD/cache GOFLAGS=-modcacherw GONOSUMDB=* GOPROXY=https://$SITE/go GOSUMDB=off
go mod download example.test/artefact@v1.0.0 && cat go/pkg/mod/example.test/artefact@v1.0.0/artefact.go`, "artefact of go"},
}

// TestClientsFetchThroughTheProxy checks that common programs fetch what the rules allow, and show
// why the rest is denied.
func TestClientsFetchThroughTheProxy(t *testing.T) { //nolint:tparallel // the subtests share a server
	t.Parallel()
	t.Cleanup(func() {
		if err := clientsSeed.Close(); err != nil {
			t.Error(err)
		}
	})
	leaf, ca := harness.Authority(t, "*.site.test")
	files := artefacts(t)
	secure, plain := httptest.NewUnstartedServer(files), httptest.NewServer(files)
	secure.TLS = &tls.Config{Certificates: []tls.Certificate{leaf}}
	secure.StartTLS()
	t.Cleanup(func() { secure.Close(); plain.Close() })
	https, http := urlPort(t, secure.URL), urlPort(t, plain.URL)
	s := harness.Run(t, harness.Options{Runtime: "oci", Seed: &clientsSeed, Config: fmt.Sprintf(`
templates:
  default:
    image: orchestrator/clients:latest
    limits: {memory: 1GiB, pids: 384, tmp: 256MiB}
    pool: {min: 0, max: 2, rate: 10}
egress: {resolver: ["%s"], private: [{hosts: ["*.site.test"], ranges: ["127.0.0.0/8"]}]}
`, harness.Names(t))})
	l := lease(t, s, v1.SandboxRequest{Egress: &v1.Egress{Rules: []v1.EgressRule{
		{Host: "a.site.test", Ports: []int{https}}, {
			Host:     "a.site.test",
			Ports:    []int{http},
			Protocol: "http",
			Methods:  []string{"GET", "HEAD"},
		},
	}}})
	fetch := func(t *testing.T, host, command string) v1.ExecResult {
		t.Helper()
		r, err := s.Client.Exec(within(t), l.ID, v1.Exec{
			Command:   "printf %s \"$PEM\" > /tmp/ca.pem; cd $(mktemp -d) || exit 99\n" + command,
			TimeoutMS: 120_000,
			Env: map[string]string{
				"PEM":   ca,
				"CA":    "/tmp/ca.pem",
				"SITE":  fmt.Sprintf("%s:%d", host, https),
				"PLAIN": fmt.Sprintf("%s:%d", host, http),
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			defer s.For(t)()
			if r := fetch(t, "a.site.test", c.command); r.ExitCode != 0 || !strings.Contains(r.Stdout, c.want) {
				t.Errorf("fetch from an allowed host: exit code %d, want 0 and %q\n%.2000s\n%.4000s",
					r.ExitCode, c.want, r.Stdout, r.Stderr)
			}
			r := fetch(t, "b.site.test", c.command)
			output := r.Stdout + r.Stderr
			if r.ExitCode == 0 && c.name != "curl of plain HTTP" || strings.Contains(output, c.want) ||
				!strings.Contains(output, "no rule allows b.site.test") {
				t.Errorf("fetch from a denied host: exit code %d, want a failure with the reason\n%.4000s", r.ExitCode, output)
			}
		})
	}
}

// artefacts returns a site with one artefact of each kind.
func artefacts(t *testing.T) http.Handler {
	t.Helper()
	dir := t.TempDir()
	harness.WriteFile(t, filepath.Join(dir, "file"), "artefact of curl\n")
	goModule(t, dir)
	gitRepository(t, dir)
	wheel(t, dir)
	debian(t, dir)
	pack := npmPackage(t)
	files := http.FileServer(http.Dir(dir))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/npm/artefact":
			sum := sha512.Sum512(pack)
			fmt.Fprintf(w, `{"name": "artefact", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {"name": "artefact",
"version": "1.0.0", "dist": {"tarball": "https://%s/npm/artefact.tgz", "integrity": "sha512-%s"}}}}`,
				r.Host, base64.StdEncoding.EncodeToString(sum[:]))
		case "/npm/artefact.tgz":
			_, _ = w.Write(pack)
		default:
			files.ServeHTTP(w, r)
		}
	})
}

// onHost runs a program on the host in a directory.
func onHost(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := hostexec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@site.test",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@site.test")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("command %s %v: %v\n%s", name, args, err, out)
	}
}

// gitRepository creates dir/repo.git for git's dumb HTTP protocol.
func gitRepository(t *testing.T, dir string) {
	t.Helper()
	work := filepath.Join(t.TempDir(), "work")
	harness.WriteFile(t, filepath.Join(work, "artefact"), "artefact of git\n")
	onHost(t, work, "git", "init", "-q", "-b", "main")
	onHost(t, work, "git", "add", "artefact")
	onHost(t, work, "git", "commit", "-q", "-m", "one")
	onHost(t, dir, "git", "clone", "-q", "--bare", work, "repo.git")
	onHost(t, filepath.Join(dir, "repo.git"), "git", "update-server-info")
}

// zipped writes a zip archive.
func zipped(t *testing.T, path string, files map[string]string) {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range files {
		w, err := z.Create(name)
		if err == nil {
			_, err = io.WriteString(w, text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	harness.WriteFile(t, path, b.String())
}

// wheel creates a package index with one Python package.
func wheel(t *testing.T, dir string) {
	t.Helper()
	const info = "artefact-1.0.dist-info/"
	const name = "artefact-1.0-py3-none-any.whl"
	index := `<a href="../../wheels/` + name + `">` + name + `</a>`
	harness.WriteFile(t, filepath.Join(dir, "simple/artefact/index.html"), index)
	zipped(t, filepath.Join(dir, "wheels", name), map[string]string{
		"artefact.py":     "# artefact of pip\n",
		info + "METADATA": "Metadata-Version: 2.1\nName: artefact\nVersion: 1.0\n",
		info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		info + "RECORD":   "",
	})
}

// goModule creates a module in the layout of a Go module proxy.
func goModule(t *testing.T, dir string) {
	t.Helper()
	const mod, at = "module example.test/artefact\n\ngo 1.19\n", "go/example.test/artefact/@v/v1.0.0"
	harness.WriteFile(t, filepath.Join(dir, at+".info"), `{"Version": "v1.0.0", "Time": "2026-01-01T00:00:00Z"}`)
	harness.WriteFile(t, filepath.Join(dir, at+".mod"), mod)
	const in = "example.test/artefact@v1.0.0/"
	zipped(t, filepath.Join(dir, at+".zip"), map[string]string{
		in + "go.mod":      mod,
		in + "artefact.go": "// Package artefact is the artefact of go.\npackage artefact\n",
	})
}

// debian creates a flat apt repository with one package.
func debian(t *testing.T, dir string) {
	t.Helper()
	tree := filepath.Join(t.TempDir(), "tree")
	control := "Package: artefact\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@site.test>\nDescription: a\n"
	harness.WriteFile(t, filepath.Join(tree, "DEBIAN/control"), control)
	harness.WriteFile(t, filepath.Join(tree, "usr/share/artefact"), "artefact of apt\n")
	for _, sub := range []string{"", "DEBIAN", "usr", "usr/share"} {
		if err := os.Chmod(filepath.Join(tree, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	archive := filepath.Join(dir, "apt")
	if err := os.MkdirAll(archive, 0o700); err != nil {
		t.Fatal(err)
	}
	onHost(t, archive, "dpkg-deb", "--root-owner-group", "-b", tree, "artefact_1.0_all.deb")
	b, err := os.ReadFile(filepath.Join(archive, "artefact_1.0_all.deb"))
	if err != nil {
		t.Fatal(err)
	}
	packages := fmt.Sprintf("%sFilename: ./artefact_1.0_all.deb\nSize: %d\nSHA512: %x\n",
		control, len(b), sha512.Sum512(b))
	harness.WriteFile(t, filepath.Join(archive, "Packages"), packages)
}

// npmPackage returns the tarball of an npm package.
func npmPackage(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, text := range map[string]string{
		"package/package.json": `{"name": "artefact", "version": "1.0.0"}`,
		"package/index.js":     "// artefact of npm\n",
	} {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
		if err == nil {
			_, err = io.WriteString(w, text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
