package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// maxTemplates limits how many files of a directory are read.
const maxTemplates = 1000

// Limits of warm-up hooks.
const (
	DefaultHookTimeout = Duration(30 * time.Second)
	MaxHookTimeout     = Duration(10 * time.Minute)
	MaxHooks           = 16
)

// Source is a template and its origin.
type Source struct {
	Name string
	// File is the template's file, or empty for the built-in default.
	File     string
	Template Template
	// Err is why the template is invalid, or nil.
	Err error
}

// Sources returns the templates of the configuration and of its directory, validated and sorted by
// name. A template's error is in its Err. Sources returns an error if it cannot read the directory.
func (c Config) Sources(file string) ([]Source, error) {
	var out []Source
	for name, t := range c.Templates {
		s := Source{Name: name, File: file, Template: t, Err: t.validate("templates." + name)}
		if !c.written[name] {
			s.File = ""
		}
		out = append(out, s)
	}
	more, err := readTemplatesDir(c.TemplatesDir)
	for _, s := range more {
		at := slices.IndexFunc(out, func(o Source) bool { return o.Name == s.Name })
		switch {
		case at < 0:
			out = append(out, s)
		case out[at].File == "": // the built-in default
			out[at] = s
		default:
			out[at].Err = definedTwice(s.Name, out[at].File, s.File)
		}
	}
	slices.SortFunc(out, func(a, b Source) int { return strings.Compare(a.Name, b.Name) })
	return out, err
}

func definedTwice(name, a, b string) error {
	return fmt.Errorf("template %s is defined in %s and in %s: remove one of them: %w", name, a, b,
		errdefs.ErrInvalidArgument)
}

// WithTemplatesDir returns the configuration with the directory's templates added. It returns the
// error of the first invalid one.
func (c Config) WithTemplatesDir(file string) (Config, error) {
	list, err := c.Sources(file)
	if err != nil {
		return c, err
	}
	templates := make(map[string]Template, len(list))
	for _, s := range list {
		if s.Err != nil {
			return c, s.Err
		}
		templates[s.Name] = s.Template
	}
	c.Templates = templates
	return c, nil
}

// readTemplatesDir reads the NAME.yaml and NAME.json files of a directory in name order. It ignores
// names that start with a dot, directories and other files.
func readTemplatesDir(dir string) ([]Source, error) {
	if dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("templates_dir %s does not exist: %w", dir, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, fmt.Errorf("templates_dir: %w", err)
	}
	var out []Source
	for _, e := range entries {
		kind := filepath.Ext(e.Name())
		if strings.HasPrefix(e.Name(), ".") || e.IsDir() || !slices.Contains([]string{".yaml", ".json", ".yml"}, kind) {
			continue
		}
		if len(out) == maxTemplates {
			return out, fmt.Errorf("templates_dir %s has over %d templates: %w", dir, maxTemplates, errdefs.ErrInvalidArgument)
		}
		s := Source{Name: strings.TrimSuffix(e.Name(), kind), File: filepath.Join(dir, e.Name())}
		if kind == ".yml" {
			s.Err = fmt.Errorf("template file %s: name it %s.yaml: %w", s.File, s.Name, errdefs.ErrInvalidArgument)
		} else {
			s.Template, s.Err = ReadTemplate(s.File)
		}
		out = append(out, s)
	}
	return out, nil
}

// ReadTemplate reads and validates a template file over the defaults. The template has the name of
// the file. The error names the file and the key.
func ReadTemplate(path string) (Template, error) {
	text, err := readFile("template file", path)
	if err != nil {
		return Template{}, err
	}
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	t, err := ParseTemplate(name, text)
	if err != nil {
		return t, fmt.Errorf("template file %s: %w", path, err)
	}
	return t, nil
}

// ParseTemplate reads YAML or JSON over the defaults of the named template and validates it.
func ParseTemplate(name string, text []byte) (Template, error) {
	t := templateDefaults(name)
	raw, err := toJSON(text)
	if err != nil {
		return t, err
	}
	tree, err := decodeTree(raw)
	if err != nil {
		return t, err
	}
	if len(bytes.TrimSpace(text)) == 0 || tree == nil {
		return t, fmt.Errorf("it is empty: write at least an image: %w", errdefs.ErrInvalidArgument)
	}
	if err := checkKeys("", tree, reflect.TypeFor[Template]()); err != nil {
		return t, err
	}
	if err := json.Unmarshal(raw, &t); err != nil {
		return t, explainDecode(err)
	}
	if !names.MatchString(name) {
		return t, fmt.Errorf("%q is not a valid template name: it %s: %w", name, namesText, errdefs.ErrInvalidArgument)
	}
	return t, t.validate("")
}

// templateDefaults returns the defaults of the named template.
func templateDefaults(name string) Template {
	t := defaultTemplate()
	if name != DefaultTemplate {
		t.Entrypoint = nil // another image may lack it
	}
	return t
}

func (t Template) validate(key string) error {
	at := func(field string) string { return strings.TrimPrefix(key+"."+field, ".") }
	switch {
	case t.Image == "":
		return bad(at("image"), `""`, "must name an image")
	case !knownClass(t.Class):
		return bad(at("class"), quoted(t.Class), "must be container, gvisor or vm")
	case !slices.Contains([]string{UserNamespaceOwn, UserNamespaceHost, UserNamespaceAuto}, t.UserNamespace):
		return bad(at("user_namespace"), quoted(clip.Message(t.UserNamespace)), "must be own, host or auto")
	case t.UserNamespace == UserNamespaceOwn && t.Class != string(runtime.ClassContainer):
		return bad(at("user_namespace"), "own", "must be host or auto for class "+t.Class+", whose kernel keeps ids apart")
	case t.UserNamespace != UserNamespaceHost && !fitsNamespace(t.User):
		return bad(at("user"), quoted(t.User), "must have ids up to 65534, or user_namespace must be host")
	case len(t.Entrypoint) > 0 && !isAbsolute(t.Entrypoint[0]):
		return bad(at("entrypoint"), t.Entrypoint[0], "must be an absolute path inside the image")
	case t.Pool.Min < 0:
		return bad(at("pool.min"), t.Pool.Min, "must not be negative")
	case t.Pool.Max < 1 || t.Pool.Max < t.Pool.Min:
		return bad(at("pool.max"), t.Pool.Max, "must be at least 1 and not less than pool.min")
	case t.Pool.Rate <= 0:
		return bad(at("pool.rate"), t.Pool.Rate, "must be more than 0 sandboxes a second")
	case t.Pool.Parallel < 1:
		return bad(at("pool.parallel"), t.Pool.Parallel, "must be at least 1")
	case t.Pool.MaxAge < Duration(time.Second):
		return bad(at("pool.max_age"), t.Pool.MaxAge, "must be at least 1s")
	case t.Pool.RefillDelay < 0 || t.Pool.RefillDelay > Duration(time.Minute):
		return bad(at("pool.refill_delay"), t.Pool.RefillDelay, "must be between 0s and 1m")
	case isRoot(t.User):
		return bad(at("user"), quoted(t.User), "must not be root, who owns the guest; use another user (default: 1000:1000)")
	case !isUser(t.User):
		return bad(at("user"), quoted(clip.Message(t.User)), "must be a user name in the image, UID or UID:GID")
	case len(t.Image) > maxImage:
		return bad(at("image"), fmt.Sprintf("of %d bytes", len(t.Image)), fmt.Sprintf("must be at most %d", maxImage))
	case slices.ContainsFunc(t.Entrypoint, func(a string) bool { return strings.ContainsRune(a, 0) }):
		return bad(at("entrypoint"), "invalid", "must not contain NUL bytes")
	case len(t.Warmup) > MaxHooks:
		return bad(at("warmup"), len(t.Warmup), fmt.Sprintf("must be at most %d commands", MaxHooks))
	}
	for i, h := range t.Warmup {
		if err := h.validate(at(fmt.Sprintf("warmup[%d]", i))); err != nil {
			return err
		}
	}
	if err := validateEnv(at("env"), t.Env); err != nil {
		return err
	}
	for _, err := range []error{t.Limits.Runtime().Validate(), t.validateMounts()} {
		if err != nil {
			return fmt.Errorf("%s%w", strings.TrimSuffix(at(" "), " "), err)
		}
	}
	return nil
}

func (h Hook) validate(key string) error {
	switch {
	case len(h.Argv) == 0 || h.Argv[0] == "":
		return bad(key+".argv", "empty", "must name a program")
	case slices.ContainsFunc(h.Argv, func(a string) bool { return strings.ContainsRune(a, 0) }):
		return bad(key+".argv", "invalid", "must not contain NUL bytes")
	case h.Timeout < 0 || h.Timeout > MaxHookTimeout:
		return bad(key+".timeout", h.Timeout,
			"must be from 0 (which is "+DefaultHookTimeout.String()+") to "+MaxHookTimeout.String())
	case h.Background && h.Timeout != 0:
		return bad(key+".timeout", h.Timeout, "must not be set with background: such a command runs as long as the sandbox")
	}
	return nil
}

// Limits of a template's environment, the same as those of a lease.
const (
	maxEnv      = 1024
	maxEnvBytes = 256 << 10
)

func validateEnv(key string, env map[string]string) error {
	total := 0
	for k, v := range env {
		total += len(k) + len(v)
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return bad(key, quoted(k), "names must not be empty or contain '='; names and values must not contain NUL bytes")
		}
	}
	if len(env) > maxEnv || total > maxEnvBytes {
		return bad(key, fmt.Sprintf("of %d variables and %d bytes", len(env), total),
			fmt.Sprintf("must be at most %d variables and %d bytes", maxEnv, maxEnvBytes))
	}
	return nil
}

// The values of Template.UserNamespace.
const (
	UserNamespaceOwn  = "own"  // each sandbox has its own
	UserNamespaceHost = "host" // all share the host's
	UserNamespaceAuto = "auto" // own where the runtime can
)

// fitsNamespace reports whether a user's ids, if it is given by ids, exist in a sandbox's user
// namespace.
func fitsNamespace(user string) bool {
	for id := range strings.SplitSeq(user, ":") {
		if n, err := strconv.ParseUint(id, 10, 64); err == nil && n > runtime.MaxNamespaceID {
			return false
		}
	}
	return true
}

// isRoot reports whether a user is root by the form of its name. The guest refuses users that are
// root in the image's /etc/passwd.
func isRoot(user string) bool {
	id, _, _ := strings.Cut(user, ":")
	return id == "root" || id != "" && strings.Trim(id, "0") == ""
}

const (
	maxImage  = 1024 // longer than any name with a digest
	maxUser   = 256
	maxUserID = 1<<32 - 2 // the highest value means "none"
)

// isUser reports whether a user name is well-formed. The guest checks whether it exists.
func isUser(user string) bool {
	if len(user) > maxUser || strings.ContainsFunc(user, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return false
	}
	id, group, both := strings.Cut(user, ":")
	if both {
		return isUserID(id) && isUserID(group)
	}
	return id == "" || strings.Trim(id, "0123456789") != "" || isUserID(id)
}

func isUserID(s string) bool {
	n, err := strconv.ParseUint(s, 10, 32)
	return err == nil && n <= maxUserID
}
