package tool

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Files reads and changes files of the call's sandbox. Paths are those of the sandbox.
type Files interface {
	// ReadFile opens a file. The caller must close it.
	ReadFile(ctx context.Context, r wire.FileRequest) (io.ReadCloser, wire.FileInfo, error)
	// WriteFile writes a file atomically.
	WriteFile(ctx context.Context, r wire.FileRequest, body io.Reader) (wire.FileInfo, error)
	EditFile(ctx context.Context, r wire.EditRequest) (wire.EditReply, error)
	Stat(ctx context.Context, r wire.FileRequest) (wire.FileInfo, error)
	List(ctx context.Context, r wire.FileRequest) (wire.Listing, error)
	Remove(ctx context.Context, r wire.FileRequest) error
	Glob(ctx context.Context, r wire.GlobRequest) (wire.GlobReply, error)
	Search(ctx context.Context, r wire.SearchRequest) (wire.SearchReply, error)
}

// MaxFile limits a file that a tool reads or writes as a whole, in bytes, unless the caps set a
// lower limit.
const MaxFile = 10 << 20

// The encodings of a file's content.
const (
	textEncoding = "text"
	baseEncoding = "base64"
)

// FileState describes a file.
type FileState struct {
	Path    string `json:"path"`
	Name    string `json:"name"`
	Type    string `json:"type" jsonschema:"file, dir, symlink or other"`
	Size    int64  `json:"size"`
	Mode    string `json:"mode" jsonschema:"octal permission bits"`
	ModTime string `json:"mod_time"`
	Target  string `json:"target,omitempty" jsonschema:"where a symlink points to"`
}

func fileState(i wire.FileInfo) FileState {
	return FileState{
		Path: i.Path, Name: i.Name, Type: i.Type, Size: i.Size, Mode: fmt.Sprintf("%04o", i.Mode),
		ModTime: i.ModTime.UTC().Format(time.RFC3339Nano), Target: i.Target,
	}
}

// request returns the guest's request for a caller's path.
func (c Caps) request(p string) (wire.FileRequest, error) {
	full, err := c.path("path", p)
	return wire.FileRequest{Path: full, NoFollow: c.NoFollow || c.inPart(full)}, err
}

// inPart reports whether the caps allow only part of a directory within which the guest confines
// paths. A symbolic link there could lead to another part, so links must not be followed.
func (c Caps) inPart(full string) bool {
	whole := func(d string) bool { return (d == wire.Workspace || d == wire.Tmp) && within(full, d) }
	return len(c.Dirs) > 0 && !slices.ContainsFunc(c.Dirs, whole)
}

// writable returns an error if the profile is read-only.
func (c Caps) writable() error {
	if c.ReadOnly {
		return usererror.Errorf(errdefs.ErrPermissionDenied, "files are read-only here")
	}
	return nil
}

func (c Caps) maxFile() int64 {
	if c.MaxFile > 0 {
		return c.MaxFile
	}
	return MaxFile
}

func tooBig(field string, size, most int64) error {
	return Invalid(field, "is a file of %d bytes: at most %d", size, most)
}

type readInput struct {
	Path     string `json:"path" jsonschema:"the file, absolute or relative to /workspace"`
	Offset   int64  `json:"offset,omitempty" jsonschema:"the byte to begin with"`
	Limit    int64  `json:"limit,omitempty" jsonschema:"at most this many bytes"`
	Encoding string `json:"encoding,omitempty" jsonschema:"text (the default; bytes that are no text are replaced) or base64"`
}

// ReadOutput is a file's content.
type ReadOutput struct {
	Path      string `json:"path"`
	Content   string `json:"content"`
	Encoding  string `json:"encoding"`
	Size      int64  `json:"size" jsonschema:"of the whole file"`
	Truncated bool   `json:"truncated" jsonschema:"the file goes on after what was read"`
	// Replaced reports that bytes that are not valid text were replaced.
	Replaced bool `json:"replaced,omitempty"`
}

var fsRead = Define(Tool{
	Name: "fs.read", Title: "Read a file", Trust: 1, ReadOnly: true, Idempotent: true,
	Description: "Reads a file of the sandbox's workspace, as text or base64.",
	Effects:     []Effect{ReadsFiles},
}, func(in *readInput) (Prepared, error) {
	switch {
	case in.Path == "":
		return Prepared{}, Invalid("path", "is empty")
	case in.Offset < 0:
		return Prepared{}, Invalid("offset", "is negative")
	case in.Limit < 0:
		return Prepared{}, Invalid("limit", "is negative")
	}
	if err := checkEncoding(in.Encoding); err != nil {
		return Prepared{}, err
	}
	return Prepared{NeedsSandbox: true}, nil
}, func(ctx context.Context, caps Caps, f Files, in *readInput) (ReadOutput, Outcome, error) {
	out, err := readFile(ctx, caps, f, in)
	return out, Outcome{}, err
})

func checkEncoding(e string) error {
	if e != "" && e != textEncoding && e != baseEncoding {
		return Invalid("encoding", "is %q: use text or base64", e)
	}
	return nil
}

func readFile(ctx context.Context, caps Caps, f Files, in *readInput) (out ReadOutput, err error) {
	r, err := caps.request(in.Path)
	if err != nil {
		return out, err
	}
	most := caps.maxFile()
	limit := most
	if in.Limit > 0 {
		limit = min(in.Limit, most)
	}
	r.Offset, r.Limit = in.Offset, limit
	body, info, err := f.ReadFile(ctx, r)
	if err != nil {
		return out, err
	}
	defer body.Close()
	if in.Limit == 0 && in.Offset == 0 && info.Size > most {
		return out, tooBig("path", info.Size, most)
	}
	b, err := io.ReadAll(io.LimitReader(body, limit))
	if err != nil {
		return out, err
	}
	out = ReadOutput{Path: in.Path, Encoding: textEncoding, Size: info.Size,
		Truncated: in.Offset+int64(len(b)) < info.Size}
	if in.Encoding == baseEncoding {
		out.Encoding, out.Content = baseEncoding, base64.StdEncoding.EncodeToString(b)
		return out, nil
	}
	out.Replaced = !utf8.Valid(b)
	out.Content = valid(b)
	return out, nil
}

type writeInput struct {
	Path     string `json:"path" jsonschema:"the file, absolute or relative to /workspace; its folders are made"`
	Content  string `json:"content"`
	Encoding string `json:"encoding,omitempty" jsonschema:"text (the default) or base64"`
	Mode     string `json:"mode,omitempty" jsonschema:"octal permission bits; 0644 unless set"`
}

// WriteOutput describes what was written.
type WriteOutput struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

var fsWrite = Define(Tool{
	Name: "fs.write", Title: "Write a file", Trust: 2, Destructive: true, Idempotent: true,
	Description: "Writes a file of the sandbox's workspace whole, or not at all.",
	Effects:     []Effect{WritesFiles},
}, func(in *writeInput) (Prepared, error) {
	if in.Path == "" {
		return Prepared{}, Invalid("path", "is empty")
	}
	if err := checkEncoding(in.Encoding); err != nil {
		return Prepared{}, err
	}
	if _, err := permissions(in.Mode); err != nil {
		return Prepared{}, err
	}
	if _, err := content(in); err != nil {
		return Prepared{}, err
	}
	return Prepared{NeedsSandbox: true}, nil
}, func(ctx context.Context, caps Caps, f Files, in *writeInput) (WriteOutput, Outcome, error) {
	if err := caps.writable(); err != nil {
		return WriteOutput{}, Outcome{}, err
	}
	r, err := caps.request(in.Path)
	if err != nil {
		return WriteOutput{}, Outcome{}, err
	}
	body, err := content(in)
	if err != nil {
		return WriteOutput{}, Outcome{}, err
	}
	if most := caps.maxFile(); int64(len(body)) > most {
		return WriteOutput{}, Outcome{}, Invalid("content", "is %d bytes long: at most %d", len(body), most)
	}
	if r.Mode, err = permissions(in.Mode); err != nil {
		return WriteOutput{}, Outcome{}, err
	}
	r.Size, r.Recursive = int64(len(body)), true
	info, err := f.WriteFile(ctx, r, bytes.NewReader(body))
	return WriteOutput{Path: in.Path, Bytes: info.Size}, Outcome{}, err
})

func content(in *writeInput) ([]byte, error) {
	if in.Encoding != baseEncoding {
		return []byte(in.Content), nil
	}
	b, err := base64.StdEncoding.DecodeString(in.Content)
	if err != nil {
		return nil, Invalid("content", "is not base64")
	}
	return b, nil
}

func permissions(mode string) (uint32, error) {
	if mode == "" {
		return 0, nil
	}
	var n uint32
	if len(mode) > 4 || strings.Trim(mode, "01234567") != "" {
		return 0, Invalid("mode", "is %s: give octal permission bits such as 0644", quote(mode))
	}
	for _, c := range mode {
		n = n<<3 | uint32(c-'0')
	}
	if n == 0 || n > 0o777 {
		return 0, Invalid("mode", "is %s: from 0001 to 0777", quote(mode))
	}
	return n, nil
}

type editInput struct {
	Path string `json:"path" jsonschema:"the file, absolute or relative to /workspace"`
	Old  string `json:"old" jsonschema:"the text to replace; without all it has to be there exactly once"`
	New  string `json:"new" jsonschema:"what stands there afterwards"`
	All  bool   `json:"all,omitempty" jsonschema:"replace every occurrence"`
}

// EditOutput describes what was replaced.
type EditOutput struct {
	Path  string `json:"path"`
	Count int    `json:"count"`
	Line  int    `json:"line" jsonschema:"of the first replacement"`
	Bytes int64  `json:"bytes" jsonschema:"of the file now"`
}

var fsEdit = Define(Tool{
	Name: "fs.edit", Title: "Edit a file", Trust: 2, Destructive: true,
	Description: "Replaces a piece of text in a file of the sandbox's workspace.",
	Effects:     []Effect{ReadsFiles, WritesFiles},
}, func(in *editInput) (Prepared, error) {
	switch {
	case in.Path == "":
		return Prepared{}, Invalid("path", "is empty")
	case in.Old == "":
		return Prepared{}, Invalid("old", "is empty")
	case in.Old == in.New:
		return Prepared{}, Invalid("new", "is the same as old")
	}
	return Prepared{NeedsSandbox: true}, nil
}, func(ctx context.Context, caps Caps, f Files, in *editInput) (EditOutput, Outcome, error) {
	if err := caps.writable(); err != nil {
		return EditOutput{}, Outcome{}, err
	}
	r, err := caps.request(in.Path)
	if err != nil {
		return EditOutput{}, Outcome{}, err
	}
	got, err := f.EditFile(ctx, wire.EditRequest{FileRequest: r, Old: in.Old, New: in.New, All: in.All})
	return EditOutput{Path: in.Path, Count: got.Count, Line: got.Line, Bytes: got.Info.Size}, Outcome{}, err
})

type pathInput struct {
	Path string `json:"path" jsonschema:"absolute or relative to /workspace"`
}

var fsStat = Define(Tool{
	Name: "fs.stat", Title: "Describe a file", Trust: 1, ReadOnly: true, Idempotent: true,
	Description: "Describes a file or folder of the sandbox's workspace.",
	Effects:     []Effect{ReadsFiles},
}, func(in *pathInput) (Prepared, error) {
	if in.Path == "" {
		return Prepared{}, Invalid("path", "is empty")
	}
	return Prepared{NeedsSandbox: true}, nil
}, func(ctx context.Context, caps Caps, f Files, in *pathInput) (FileState, Outcome, error) {
	r, err := caps.request(in.Path)
	if err != nil {
		return FileState{}, Outcome{}, err
	}
	info, err := f.Stat(ctx, r)
	return fileState(info), Outcome{}, err
})

type listInput struct {
	Path string `json:"path,omitempty" jsonschema:"the folder, absolute or relative to /workspace; /workspace unless set"`
}

// ListOutput is the content of a directory.
type ListOutput struct {
	Path      string      `json:"path"`
	Entries   []FileState `json:"entries"`
	Truncated bool        `json:"truncated"`
}

var fsList = Define(Tool{
	Name: "fs.list", Title: "List a folder", Trust: 1, ReadOnly: true, Idempotent: true,
	Description: "Lists a folder of the sandbox's workspace.",
	Effects:     []Effect{ReadsFiles},
}, func(in *listInput) (Prepared, error) {
	return Prepared{NeedsSandbox: true}, nil
}, func(ctx context.Context, caps Caps, f Files, in *listInput) (ListOutput, Outcome, error) {
	r, err := caps.request(in.Path)
	if err != nil {
		return ListOutput{}, Outcome{}, err
	}
	list, err := f.List(ctx, r)
	if err != nil {
		return ListOutput{}, Outcome{}, err
	}
	out := ListOutput{Path: in.Path, Entries: make([]FileState, 0, len(list.Items)), Truncated: list.Truncated}
	for _, i := range list.Items {
		out.Entries = append(out.Entries, fileState(i))
	}
	return out, Outcome{}, nil
})

type deleteInput struct {
	Path      string `json:"path" jsonschema:"absolute or relative to /workspace"`
	Recursive bool   `json:"recursive,omitempty" jsonschema:"a folder with all that is in it"`
}

// DeleteOutput describes what was deleted.
type DeleteOutput struct {
	Path    string `json:"path"`
	Deleted bool   `json:"deleted"`
}

var fsDelete = Define(Tool{
	Name: "fs.delete", Title: "Delete a file", Trust: 2, Destructive: true,
	Description: "Deletes a file, or with recursive a folder, of the sandbox's workspace.",
	Effects:     []Effect{WritesFiles},
}, func(in *deleteInput) (Prepared, error) {
	if in.Path == "" {
		return Prepared{}, Invalid("path", "is empty")
	}
	return Prepared{NeedsSandbox: true}, nil
}, func(ctx context.Context, caps Caps, f Files, in *deleteInput) (DeleteOutput, Outcome, error) {
	if err := caps.writable(); err != nil {
		return DeleteOutput{}, Outcome{}, err
	}
	r, err := caps.request(in.Path)
	if err != nil {
		return DeleteOutput{}, Outcome{}, err
	}
	r.Recursive = in.Recursive
	if err := f.Remove(ctx, r); err != nil {
		return DeleteOutput{}, Outcome{}, err
	}
	return DeleteOutput{Path: in.Path, Deleted: true}, Outcome{}, nil
})
