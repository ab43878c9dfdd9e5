package jobs

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Limits of a request.
const (
	maxName        = 256
	maxParallelism = 1000
	maxRetries     = 10
	maxFiles       = 256
	maxFileBytes   = 16 << 20 // all input files together
	maxPatterns    = 64
	maxPattern     = 1024
	maxVariables   = 16
	maxExecBytes   = 16 << 20 // all commands after the matrix, as JSON

	defaultDeadline = 24 * time.Hour
	defaultTTL      = 24 * time.Hour
)

// Endings of attempts besides those of package runtime.
const (
	notRun  runtime.Ending = "not_run" // it never started
	unknown runtime.Ending = "unknown" // it may have run, and its end was not seen
)

// retryable lists the endings that a retry can name, besides exit:N.
func retryable() []runtime.Ending {
	return []runtime.Ending{
		runtime.Exited, runtime.Signalled, runtime.Timeout, runtime.OOM, runtime.Pids, runtime.Disk, runtime.OutputLimit,
		runtime.SandboxLost, unknown, notRun,
	}
}

// expand validates a request, fills in its defaults and returns its commands.
func (s *Service) expand(ctx context.Context, p caller.Principal, r *v1.JobRequest) ([]store.JobCommand, error) {
	for _, check := range []func(*v1.JobRequest) error{
		s.checkNumbers, checkRetries, checkPatterns, checkFiles, checkMatrix, checkWorkspace, checkQueue,
	} {
		if err := check(r); err != nil {
			return nil, err
		}
	}
	if r.Native {
		if err := s.opts.Sandboxes.CheckNative(ctx); err != nil {
			return nil, err
		}
	}
	if r.Image != "" {
		if r.Template != "" {
			return nil, usererror.Invalid("image", "and template are both set: use one of them")
		}
		name, err := s.opts.Sandboxes.TemplateOfImage(p, r.Image)
		if err != nil {
			return nil, err
		}
		r.Template = name
	}
	if err := s.opts.Sandboxes.CheckLease(p, leaseRequest(r), r.Native); err != nil {
		return nil, err
	}
	list, err := baseCommands(r)
	if err != nil {
		return nil, err
	}
	return s.multiply(r, list)
}

// leaseRequest returns the request for a sandbox of the job.
func leaseRequest(r *v1.JobRequest) v1.SandboxRequest {
	return v1.SandboxRequest{
		Template: r.Template, Workspace: r.Workspace, ReadOnly: r.ReadOnly, Mode: r.Mode, Class: r.Class, Labels: r.Labels,
		Egress: r.Egress,
	}
}

func (s *Service) checkNumbers(r *v1.JobRequest) error {
	maxDeadline, maxTTL := s.opts.Limits.Deadline, s.opts.Limits.TTL
	r.Parallelism = cmp.Or(r.Parallelism, 1)
	r.DeadlineMS = cmp.Or(r.DeadlineMS, min(defaultDeadline, maxDeadline).Milliseconds())
	r.TTLMS = cmp.Or(r.TTLMS, min(defaultTTL, maxTTL).Milliseconds())
	switch {
	case len(r.Name) > maxName || !utf8.ValidString(r.Name):
		return usererror.Invalid("name", "is not UTF-8 of at most %d bytes", maxName)
	case r.Parallelism < 0 || r.Parallelism > maxParallelism:
		return usererror.Invalid("parallelism", "is %d: from 1 to %d", r.Parallelism, maxParallelism)
	case r.DeadlineMS < 0 || r.DeadlineMS > maxDeadline.Milliseconds():
		return usererror.Invalid("deadline_ms", "is %d: from 1 to %d", r.DeadlineMS, maxDeadline.Milliseconds())
	case r.TTLMS < 0 || r.TTLMS > maxTTL.Milliseconds():
		return usererror.Invalid("ttl_ms", "is %d: from 1 to %d", r.TTLMS, maxTTL.Milliseconds())
	}
	return nil
}

func checkRetries(r *v1.JobRequest) error {
	if r.Retries < 0 || r.Retries > maxRetries {
		return usererror.Invalid("retries", "is %d: from 0 to %d", r.Retries, maxRetries)
	}
	if r.Retries == 0 && len(r.RetryOn) > 0 {
		return usererror.Invalid("retry_on", "needs retries: set how often a command runs again")
	}
	known := retryable()
	for _, on := range r.RetryOn {
		if code, ok := strings.CutPrefix(on, "exit:"); ok {
			if n, err := strconv.Atoi(code); err != nil || n < 1 || n > 255 {
				return usererror.Invalid("retry_on", "has %q: the exit code is from 1 to 255, such as exit:75", on)
			}
			continue
		}
		if !slices.Contains(known, runtime.Ending(on)) {
			names := make([]string, 0, len(known))
			for _, e := range known {
				names = append(names, string(e))
			}
			return usererror.Invalid("retry_on", "has %q: use %s or exit:N", on, strings.Join(names, ", "))
		}
	}
	r.RetryOn = slices.Compact(slices.Sorted(slices.Values(r.RetryOn)))
	if r.Retries > 0 && len(r.RetryOn) == 0 {
		r.RetryOn = []string{string(runtime.SandboxLost), string(unknown), string(notRun)}
	}
	return nil
}

// retries reports whether an ending is retried.
func retries(on []string, e runtime.Ending, code int) bool {
	if e == runtime.Exited {
		return code != 0 && (slices.Contains(on, string(e)) || slices.Contains(on, fmt.Sprintf("exit:%d", code)))
	}
	return slices.Contains(on, string(e))
}

func checkPatterns(r *v1.JobRequest) error {
	if len(r.Artifacts) > maxPatterns {
		return usererror.Invalid("artifacts", "has %d patterns: at most %d", len(r.Artifacts), maxPatterns)
	}
	for _, g := range r.Artifacts {
		if g == "" || len(g) > maxPattern || strings.HasPrefix(g, "/") || !utf8.ValidString(g) ||
			slices.Contains(strings.Split(g, "/"), "..") {
			return usererror.Invalid("artifacts",
				"has the pattern %.100q: use one relative to /workspace without .., such as out/**/*.xml", g)
		}
	}
	return nil
}

func checkFiles(r *v1.JobRequest) error {
	if len(r.Files) > maxFiles {
		return usererror.Invalid("files", "has %d entries: at most %d; use a workspace for more", len(r.Files), maxFiles)
	}
	total := 0
	for i, f := range r.Files {
		body, err := contentOf(f)
		if err != nil {
			return usererror.Invalid("files", "entry %d: base64 is invalid: %v", i, err)
		}
		if total += len(body); total > maxFileBytes {
			return usererror.Invalid("files", "are over %d bytes together: use a workspace", maxFileBytes)
		}
		if f.Content != "" && f.Base64 != "" {
			return usererror.Invalid("files", "entry %d has content and base64: use one of them", i)
		}
		clean := path.Clean(f.Path)
		if f.Path == "" || len(f.Path) > wire.MaxPathBytes || strings.ContainsRune(f.Path, 0) ||
			clean == "." || clean == ".." || strings.HasPrefix(clean, "../") ||
			path.IsAbs(clean) && !strings.HasPrefix(clean, "/workspace/") && !strings.HasPrefix(clean, "/tmp/") {
			return usererror.Invalid("files", "entry %d has the path %.100q: use one below /workspace or /tmp", i, f.Path)
		}
		if _, err := modeOf(f); err != nil {
			return usererror.Invalid("files", "entry %d has the mode %q: use octal permission bits such as 0644", i, f.Mode)
		}
	}
	return nil
}

// contentOf returns the bytes of an input file.
func contentOf(f v1.JobFile) ([]byte, error) {
	if f.Base64 != "" {
		return base64.StdEncoding.DecodeString(f.Base64)
	}
	return []byte(f.Content), nil
}

func modeOf(f v1.JobFile) (uint32, error) {
	n, err := strconv.ParseUint(cmp.Or(f.Mode, "0644"), 8, 32)
	if err == nil && n > 0o777 {
		err = strconv.ErrRange
	}
	return uint32(n), err // at most 0777
}

func checkMatrix(r *v1.JobRequest) error {
	if len(r.Matrix) > maxVariables {
		return usererror.Invalid("matrix", "has %d variables: at most %d", len(r.Matrix), maxVariables)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Matrix)) {
		values := r.Matrix[name]
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			return usererror.Invalid("matrix", "has the name %.100q: use a name of an environment variable", name)
		case len(values) == 0:
			return usererror.Invalid("matrix", "has no values for %s: give at least one", name)
		}
	}
	return nil
}

// checkWorkspace refuses a job whose sandboxes would wait for each other.
func checkWorkspace(r *v1.JobRequest) error {
	if r.Workspace == "" || r.Parallelism == 1 || r.ReadOnly || r.Mode == "ro" || r.Mode == "overlay" {
		return nil
	}
	return usererror.Invalid("parallelism",
		"is %d, and one sandbox at a time can write to a workspace: set read_only, mode overlay, or parallelism 1",
		r.Parallelism)
}

// queueName matches names of objects in a cluster that are also values of labels.
var queueName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func checkQueue(r *v1.JobRequest) error {
	switch {
	case r.Queue != "" && !r.Native:
		return usererror.Invalid("queue", "needs native: set native, or leave queue out")
	case r.Suspend && !r.Native:
		return usererror.Invalid("suspend", "needs native: set native, or leave suspend out")
	case r.Queue != "" && !queueName.MatchString(r.Queue):
		return usererror.Invalid("queue", "is %.100q: use the name of a queue, of up to 63 of a-z, 0-9 and -", r.Queue)
	}
	return nil
}

// baseCommands returns the commands before the matrix, with the job's defaults.
func baseCommands(r *v1.JobRequest) ([]v1.JobCommand, error) {
	single := len(r.Argv) > 0 || r.Command != ""
	switch {
	case single && len(r.Commands) > 0:
		return nil, usererror.Invalid("commands", "and a command of the job are both set: use one of them")
	case !single && len(r.Commands) == 0:
		return nil, usererror.Invalid("commands", "is empty: give commands, or argv, or command for a shell")
	}
	list := r.Commands
	if single {
		list = []v1.JobCommand{{Exec: r.Exec}}
	}
	out := make([]v1.JobCommand, 0, len(list))
	for i, c := range list {
		if c.Stdin != "" || c.StdinBase64 != "" || r.Stdin != "" || r.StdinBase64 != "" {
			return nil, usererror.Invalid("stdin", "is not for jobs: use files, and let the command read one")
		}
		if len(c.Name) > maxName || !utf8.ValidString(c.Name) {
			return nil, usererror.Invalid("commands", "entry %d: name is not UTF-8 of at most %d bytes", i, maxName)
		}
		c.Cwd, c.User = cmp.Or(c.Cwd, r.Cwd), cmp.Or(c.User, r.User)
		c.TimeoutMS = cmp.Or(c.TimeoutMS, r.TimeoutMS)
		c.MaxOutputBytes = cmp.Or(c.MaxOutputBytes, r.MaxOutputBytes)
		c.StopAtOutput = c.StopAtOutput || r.StopAtOutput
		env := maps.Clone(r.Env)
		if env == nil {
			env = map[string]string{}
		}
		maps.Copy(env, c.Env)
		c.Env = env
		out = append(out, c)
	}
	return out, nil
}

// multiply returns a row for each command and combination of the matrix.
func (s *Service) multiply(r *v1.JobRequest, list []v1.JobCommand) ([]store.JobCommand, error) {
	names := slices.Sorted(maps.Keys(r.Matrix))
	n, most := len(list), s.opts.Limits.Commands
	for _, name := range names {
		if n *= len(r.Matrix[name]); n > most {
			break
		}
	}
	if n > most {
		return nil, usererror.Invalid("commands", "are over %d with the matrix, which is the limit: use more jobs", most)
	}
	out, total := make([]store.JobCommand, 0, n), 0
	for i := range n {
		which, rest := i/(n/len(list)), i%(n/len(list))
		c := list[which]
		c.Env = maps.Clone(c.Env)
		values := make([]string, len(names))
		for k := len(names) - 1; k >= 0; k-- { // the last name changes fastest
			v := r.Matrix[names[k]]
			c.Env[names[k]] = v[rest%len(v)]
			values[k], rest = names[k]+"="+v[rest%len(v)], rest/len(v)
		}
		if _, err := s.opts.Sandboxes.Command("", c.Exec); err != nil {
			return nil, inCommand(err, which, len(r.Commands) > 0)
		}
		body, err := json.Marshal(c.Exec)
		if err != nil {
			return nil, err
		}
		if total += len(body); total > maxExecBytes {
			return nil, usererror.Invalid("commands", "are over %d bytes with the matrix: use files", maxExecBytes)
		}
		out = append(out, store.JobCommand{Index: i, Name: commandName(c, values), Exec: body})
	}
	return out, nil
}

// inCommand names the entry of the list that an error is about.
func inCommand(err error, index int, list bool) error {
	e, ok := err.(*usererror.InvalidError) //nolint:errorlint // it is what Command returns
	if !ok || !list {
		return err
	}
	return &usererror.InvalidError{Field: fmt.Sprintf("commands[%d].%s", index, e.Field), Message: e.Message, Class: e.Class}
}

// commandName returns the name of a command in lists and reports.
func commandName(c v1.JobCommand, values []string) string {
	name := cmp.Or(c.Name, c.Command, strings.Join(c.Argv, " "))
	name, _, _ = strings.Cut(strings.TrimSpace(name), "\n")
	if len(values) > 0 {
		name += " [" + strings.Join(values, " ") + "]"
	}
	return strings.ToValidUTF8(name[:min(len(name), maxName)], "")
}
