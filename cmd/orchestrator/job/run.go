package job

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

type runOptions struct {
	shell, cwd, user         string
	env                      []string
	timeout, deadline, ttl   time.Duration
	name, list               string
	matrix, files, artifacts []string
	template, image          string
	workspace, mode, class   string
	readOnly, wait           bool
	native, suspend          bool
	queue                    string
	parallel, retries        int
	retryOn                  []string
	junit, key               string
}

func newRun(a *cli.App) *cobra.Command {
	var o runOptions
	c := &cobra.Command{
		Use:   "run [flags] -- CMD...",
		Short: "Start a job: a command, a list or a matrix",
		Long: `Start a job and print it. Each command runs in a sandbox of its own. --list reads
one shell command from each line of a file. --matrix runs each command once for
every combination of values, which it finds in its environment. With --wait, the
command waits for the job's end, and its exit code says how the job ended.`,
		Example: `  orchestrator job run --list commands.txt --parallel 8
  orchestrator job run --matrix PY=3.11,3.12 --matrix OS=a,b -c 'echo $PY $OS'
  orchestrator job run --wait --junit report.xml --file test.py -- python3 test.py
  orchestrator job run --retries 2 --retry-on exit:75,sandbox_lost -- ./flaky`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return run(cmd.Context(), a, cmd, o, args) },
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.StringVarP(&o.shell, "command", "c", "", "`TEXT` for the sandbox's shell, instead of CMD")
	f.StringVar(&o.list, "list", "", "`FILE` with one shell command per line, instead of CMD; - is standard input")
	f.StringArrayVar(&o.matrix, "matrix", nil, "`NAME=VALUE,...` of an environment variable; can be repeated")
	f.StringArrayVarP(&o.env, "env", "e", nil, "`KEY=VALUE`, or KEY to pass on your own; can be repeated")
	f.StringVar(&o.cwd, "cwd", "", "working `DIR` (default: /workspace)")
	f.StringVarP(&o.user, "user", "u", "", "`USER` by name or number, except 0 (default: the sandbox's user)")
	f.DurationVar(&o.timeout, "timeout", 0, "time limit of each attempt (0: the server's default)")
	f.DurationVar(&o.deadline, "deadline", 0, "time limit of the whole job (0: one day)")
	f.DurationVar(&o.ttl, "ttl", 0, "how long results are kept after the end (0: one day)")
	f.IntVarP(&o.parallel, "parallel", "p", 0, "how many commands run at once (0: 1, in order)")
	f.IntVar(&o.retries, "retries", 0, "how often a command runs again")
	f.StringSliceVar(&o.retryOn, "retry-on", nil,
		"`ENDINGS` to retry, such as oom or exit:75 (default: sandbox_lost, unknown and not_run)")
	f.StringArrayVar(&o.files, "file", nil, "`FILE[:PATH]` to write to every sandbox; can be repeated")
	f.StringArrayVar(&o.artifacts, "artifact", nil, "`PATTERN` of files to keep, such as 'out/**/*.xml'; can be repeated")
	f.StringVar(&o.name, "name", "", "`LABEL` for lists")
	f.StringVar(&o.template, "template", "", "`NAME` of the template (default: the default template)")
	f.StringVar(&o.image, "image", "", "`REF` of an image that a template has, instead of --template")
	f.StringVar(&o.workspace, "workspace", "", "`NAME` of the workspace to mount at /workspace")
	f.BoolVar(&o.readOnly, "read-only", false, "make the workspace read-only")
	f.StringVar(&o.mode, "mode", "", cli.ModeHelp)
	f.StringVar(&o.class, "class", "", "minimum isolation `CLASS`: container, gvisor or vm")
	nativeFlags(f, &o)
	f.BoolVar(&o.wait, "wait", false, "wait for the job's end")
	f.StringVar(&o.junit, "junit", "", "with --wait, write the results as JUnit XML to `FILE`")
	f.StringVar(&o.key, "idempotency-key", "", "create the job at most once for this `KEY`")
	return c
}

// nativeFlags adds the flags of jobs that the cluster's own queueing can hold.
func nativeFlags(f *pflag.FlagSet, o *runOptions) {
	f.BoolVar(&o.native, "native", false, "run each attempt as a Job of the cluster (runtime kubernetes only)")
	f.StringVar(&o.queue, "queue", "", "`NAME` of the queue of Kueue that starts the commands; implies --native")
	f.BoolVar(&o.suspend, "suspend", false, "create the Jobs suspended, until the cluster resumes them; implies --native")
}

func run(ctx context.Context, a *cli.App, cmd *cobra.Command, o runOptions, args []string) error {
	r, err := request(ctx, a, cmd, o, args)
	if err != nil {
		return err
	}
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	j, err := cl.Jobs.Create(ctx, r, cli.IdempotencyKey(o.key)...)
	if err != nil {
		return err
	}
	if !o.wait {
		return printJob(a, j)
	}
	a.Note("job %s has %d commands", j.ID, j.Commands.Total)
	return wait(ctx, a, cl.Jobs, j.ID, o.junit)
}

// request returns the request for a command line.
func request(ctx context.Context, a *cli.App, cmd *cobra.Command, o runOptions, args []string) (v1.JobRequest, error) {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	given := 0
	for _, is := range []bool{len(args) > 0, o.shell != "", o.list != ""} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return v1.JobRequest{}, cli.Usage(cmd, "CMD after --, --command and --list: give exactly one of them")
	case o.junit != "" && !o.wait:
		return v1.JobRequest{}, cli.Usage(cmd, "--junit needs --wait: results exist at the job's end")
	}
	env, err := a.Environment(cmd, o.env)
	if err != nil {
		return v1.JobRequest{}, err
	}
	r := v1.JobRequest{
		Name: o.name,
		Exec: v1.Exec{
			Argv: args, Command: o.shell, Cwd: o.cwd, User: o.user, Env: env, TimeoutMS: cli.Millis(o.timeout),
		},
		Template: o.template, Image: o.image, Workspace: o.workspace, ReadOnly: o.readOnly, Mode: o.mode, Class: o.class,
		Parallelism: o.parallel, DeadlineMS: cli.Millis(o.deadline), TTLMS: cli.Millis(o.ttl), Retries: o.retries,
		RetryOn: o.retryOn, Artifacts: o.artifacts, Queue: o.queue, Suspend: o.suspend,
		Native: o.native || o.suspend || o.queue != "",
	}
	if r.Commands, err = commands(ctx, a, o.list); err != nil {
		return v1.JobRequest{}, err
	}
	if r.Matrix, err = matrix(cmd, o.matrix); err != nil {
		return v1.JobRequest{}, err
	}
	r.Files, err = inputs(ctx, a, o.files)
	return r, err
}

// commands reads one shell command from each line of a file. It skips empty lines and comments.
func commands(ctx context.Context, a *cli.App, file string) ([]v1.JobCommand, error) {
	if file == "" {
		return nil, nil
	}
	in, _, done, err := a.OpenInput(ctx, file)
	if err != nil {
		return nil, err
	}
	defer done()
	var out []v1.JobCommand
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		text := strings.TrimSpace(lines.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		out = append(out, v1.JobCommand{Exec: v1.Exec{Command: text}})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return out, nil
}

// matrix reads values of --matrix.
func matrix(cmd *cobra.Command, list []string) (map[string][]string, error) {
	pairs, err := cli.ParsePairs(cmd, "--matrix", list)
	if err != nil || len(pairs) == 0 {
		return nil, err
	}
	out := make(map[string][]string, len(pairs))
	for name, values := range pairs {
		out[name] = strings.Split(values, ",")
	}
	return out, nil
}

// splitInput splits FILE[:PATH]. volume is the Windows volume that arg begins with, such as C:, or
// "".
func splitInput(arg, volume string) (from, to string) {
	from, to, ok := strings.Cut(arg[len(volume):], ":")
	if !ok {
		to = filepath.Base(from)
	}
	return volume + from, to
}

// inputs reads the files of --file.
func inputs(ctx context.Context, a *cli.App, list []string) ([]v1.JobFile, error) {
	var out []v1.JobFile
	for _, arg := range list {
		from, to := splitInput(arg, filepath.VolumeName(arg))
		in, _, done, err := a.OpenInput(ctx, from)
		if err != nil {
			return nil, err
		}
		body, err := io.ReadAll(io.LimitReader(in, maxInput))
		done()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", from, err)
		}
		file := v1.JobFile{Path: to}
		if info, err := os.Stat(from); err == nil {
			file.Mode = fmt.Sprintf("%04o", info.Mode().Perm())
		}
		if utf8.Valid(body) {
			file.Content = string(body)
		} else {
			file.Base64 = base64.StdEncoding.EncodeToString(body)
		}
		out = append(out, file)
	}
	return out, nil
}

// maxInput bounds what is read of an input file, in bytes: more than the server accepts.
const maxInput = 32 << 20
