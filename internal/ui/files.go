package ui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"path"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

//go:embed static
var static embed.FS

// Policy is the Content-Security-Policy of the pages. Everything comes from the service itself, and
// no script, style or handler may stand in a page.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'none'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'"

// DataPolicy is the Content-Security-Policy of answers to a session that are not pages. If a
// browser shows one, it runs nothing.
const DataPolicy = "default-src 'none'; sandbox; frame-ancestors 'none'"

// Secure sets the headers that answers to browsers need.
func Secure(h http.Header, policy string) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// mediaType returns the media type of an embedded file.
func mediaType(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return "text/plain; charset=utf-8"
}

// Files are the embedded files by name. They must not change; Serve may be called concurrently.
type Files map[string]file

// file has an ETag that is computed once, because anybody may ask for files.
type file struct {
	content []byte
	tag     string
}

// NewFiles returns the files of the dashboard.
func NewFiles() Files {
	files := Files{}
	entries, _ := static.ReadDir("static") // never fails, like the next one: they are in memory
	for _, e := range entries {
		b, _ := static.ReadFile(path.Join("static", e.Name()))
		sum := sha256.Sum256(b)
		files[e.Name()] = file{content: b, tag: `"` + hex.EncodeToString(sum[:16]) + `"`}
	}
	return files
}

// Serve answers with a file; name "" is the page. It returns an error of class NotFound for a name
// that does not exist.
func (f Files) Serve(w http.ResponseWriter, r *http.Request, name string) error {
	if name == "" {
		name = "index.html"
	}
	got, ok := f[name]
	if !ok {
		return usererror.Errorf(errdefs.ErrNotFound, "page /ui/%s not found: open /ui/", name)
	}
	h := w.Header()
	Secure(h, Policy)
	h.Set("Content-Type", mediaType(name))
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", got.tag)
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(got.content))
	return nil
}
