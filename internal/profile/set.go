package profile

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

//go:embed data/*.yaml
var data embed.FS

// Default is the profile of callers that name none.
const Default = "default"

// BuiltIn is the value of Compiled.Source for built-in profiles.
const BuiltIn = "built in"

// Bounds of a directory of profiles.
const (
	maxFiles   = 1000
	maxExtends = 16
)

// Set is an immutable set of profiles.
type Set struct{ profiles map[string]*Compiled }

// Get returns a profile by name; "" means Default. If it does not exist, the error is NotFound and
// lists the profiles.
func (s *Set) Get(name string) (*Compiled, error) {
	if name == "" {
		name = Default
	}
	if c, ok := s.profiles[name]; ok {
		return c, nil
	}
	known := slices.Sorted(maps.Keys(s.profiles))
	return nil, fmt.Errorf("profile %q not found%s (known: %s): %w", clip.Message(name), nearest(name, known),
		strings.Join(known, ", "), errdefs.ErrNotFound)
}

// List returns all profiles, sorted by name.
func (s *Set) List() []*Compiled {
	out := make([]*Compiled, 0, len(s.profiles))
	for _, name := range slices.Sorted(maps.Keys(s.profiles)) {
		out = append(out, s.profiles[name])
	}
	return out
}

// Builtin compiles the built-in profiles.
func Builtin() (*Set, error) {
	l, err := builtinLoader()
	if err != nil {
		return nil, err
	}
	return l.compile()
}

// Load compiles the built-in profiles and those in a directory: *.yaml, *.yml and *.json, not in
// subdirectories. Names must be unique, including built-in ones. It reads all files and joins the
// errors; those about a file are *FileError.
func Load(dir string) (*Set, error) {
	base, err := builtinLoader()
	if err != nil {
		return nil, err
	}
	l := base.clone()
	if err := l.addDir(dir); err != nil {
		return nil, err
	}
	return l.compile()
}

// builtinLoader returns a loader with the compiled built-in profiles.
var builtinLoader = sync.OnceValues(func() (*loader, error) {
	l := newLoader()
	if err := l.builtin(); err != nil {
		return nil, err
	}
	_, err := l.compile()
	return l, err
})

// loader collects and compiles profiles.
type loader struct {
	drafts   map[string]*draft
	merged   map[string]*draft
	compiled map[string]*Compiled
	order    []string
	errs     []error
}

func newLoader() *loader {
	return &loader{drafts: map[string]*draft{}, merged: map[string]*draft{}, compiled: map[string]*Compiled{}}
}

// clone returns a loader that continues with a copy of the state of l.
func (l *loader) clone() *loader {
	return &loader{drafts: maps.Clone(l.drafts), merged: maps.Clone(l.merged), compiled: maps.Clone(l.compiled),
		order: slices.Clone(l.order)}
}

func (l *loader) builtin() error {
	files, err := data.ReadDir("data")
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := data.ReadFile("data/" + f.Name())
		if err != nil {
			return err
		}
		l.add("data/"+f.Name(), text, true)
	}
	return nil
}

func (l *loader) addDir(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("profiles: %w", err)
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return fmt.Errorf("profiles: %w", err)
	}
	count := 0
	for _, e := range entries {
		if !slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(e.Name())) ||
			strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if count++; count > maxFiles {
			return fmt.Errorf("profiles: %s has more than %d files: %w", dir, maxFiles, errdefs.ErrInvalidArgument)
		}
		file := path.Join(dir, e.Name())
		text, err := readFile(root, e.Name())
		if err != nil {
			l.errs = append(l.errs, &FileError{File: file, Reason: err.Error()})
			continue
		}
		l.add(file, text, false)
	}
	return nil
}

// readFile reads a regular file, up to one byte over the maximum size.
func readFile(root *os.Root, name string) ([]byte, error) {
	info, err := root.Stat(name)
	if err != nil {
		return nil, reason(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}
	if info.Size() > MaxFile {
		return nil, fmt.Errorf("is %d bytes long, more than %d", info.Size(), MaxFile)
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, reason(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	return b, reason(err)
}

func reason(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

var validName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

var profileType = reflect.TypeFor[Profile]()

// add parses one file and records an error in it.
func (l *loader) add(file string, text []byte, builtin bool) {
	d, name, err := read(file, text)
	if err == nil {
		err = l.unique(d, name)
	}
	if err != nil {
		l.errs = append(l.errs, err)
		return
	}
	d.files[0].builtin = builtin
	l.drafts[name] = d
	l.order = append(l.order, name)
}

func (l *loader) unique(d *draft, name string) error {
	other, ok := l.drafts[name]
	switch {
	case !ok:
		return nil
	case other.files[0].builtin:
		return d.files[0].fail("name", "is %q, the name of a built-in profile: use another name and extend it", name)
	}
	return d.files[0].fail("name", "is %q, which %s has too", name, other.files[0].file)
}

// read parses the text of one file into a draft.
func read(file string, text []byte) (*draft, string, error) {
	n, err := parseFile(file, text)
	if err != nil {
		return nil, "", err
	}
	src := &source{file: file, lines: map[string]int{}}
	base := strings.TrimSuffix(path.Base(file), path.Ext(file))
	switch {
	case path.Ext(file) == ".json" && hasToolMap(n):
		return readGateway(src, base, n)
	case hasToolMap(n) && n.get("name") == nil && n.get("extends") == nil:
		return readAgent(src, base, n)
	}
	v, err := check(src, "", n, profileType)
	if err != nil {
		return nil, "", err
	}
	body := v.(tree)
	name, ok := body["name"].(string)
	if !ok {
		name = base
		body["name"] = name
	}
	if !validName.MatchString(name) {
		return nil, "", src.fail("name", "is %q: use up to 64 of a-z, 0-9, - and _, starting with a letter or digit",
			clip.Message(name))
	}
	return newDraft(body, src), name, checkTools(src, body)
}

// checkTools checks the names of the tools, which merging depends on.
func checkTools(src *source, body tree) error {
	seen := map[string]int{}
	for i, t := range items(body, "tools") {
		name, _ := t.(tree)["name"].(string)
		at := toolPath(i)
		if name == "" {
			return src.fail(at+".name", "is missing: every tool needs a name")
		}
		if !validTool.MatchString(name) {
			return src.fail(at+".name",
				"is %q: use up to 64 letters, digits, '.', - and _, starting with a letter", clip.Message(name))
		}
		form := mcpName(name)
		if first, ok := seen[form]; ok {
			return src.fail(at+".name", "is %q, which tools[%d] has too (MCP replaces dots by underscores)",
				name, first)
		}
		seen[form] = i
	}
	return nil
}

var validTool = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]{0,63}$`)

// mcpName returns a tool name with underscores for dots.
func mcpName(name string) string { return strings.ReplaceAll(name, ".", "_") }

// merge merges a profile over those that it extends. chain lists the profiles that lead here.
func (l *loader) merge(name string, chain []string) (*draft, error) {
	if d, ok := l.merged[name]; ok {
		return d, nil
	}
	d := l.drafts[name]
	parent, _ := d.body["extends"].(string)
	if parent == "" {
		l.merged[name] = d
		return d, nil
	}
	src := d.files[0]
	chain = append(chain, name)
	switch {
	case slices.Contains(chain, parent):
		return nil, src.fail("extends", "is circular: %s", strings.Join(append(chain, parent), " extends "))
	case len(chain) > maxExtends:
		return nil, src.fail("extends", "is a chain of %d profiles, more than %d", len(chain), maxExtends)
	case l.drafts[parent] == nil:
		return nil, src.fail("extends", "names unknown profile %q%s", clip.Message(parent), nearest(parent, l.order))
	}
	p, err := l.merge(parent, chain)
	if err != nil {
		if slices.Contains(chain[:len(chain)-1], parent) {
			return nil, err
		}
		return nil, src.fail("extends", "is invalid: %s", err)
	}
	m := extend(d, p)
	l.merged[name] = m
	return m, nil
}

func (l *loader) compile() (*Set, error) {
	for _, name := range l.order {
		if l.compiled[name] != nil {
			continue
		}
		d, err := l.merge(name, nil)
		if err == nil {
			l.compiled[name], err = compile(d)
		}
		if err != nil {
			l.errs = append(l.errs, err)
		}
	}
	if len(l.errs) > 0 {
		return nil, errors.Join(distinct(l.errs)...)
	}
	return &Set{profiles: maps.Clone(l.compiled)}, nil
}

// distinct removes duplicate errors: an error in a profile is also found in those that extend it.
func distinct(errs []error) []error {
	seen := map[string]bool{}
	return slices.DeleteFunc(errs, func(err error) bool {
		reported := seen[err.Error()]
		seen[err.Error()] = true
		return reported
	})
}

// decode converts a draft with checked types to a Profile.
func decode(d *draft) (Profile, error) {
	var p Profile
	b, err := json.Marshal(d.body)
	if err != nil {
		return p, d.files[0].fail("", "cannot be decoded: %s", err)
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return p, d.files[0].fail("", "cannot be decoded: %s", clip.Message(err.Error()))
	}
	p.Warnings = d.warnings
	return p, nil
}
