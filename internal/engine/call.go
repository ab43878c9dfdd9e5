package engine

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Principal identifies the caller of a request and its idempotency key. Identify makes it from a token,
// Local from access to the service's socket.
type Principal struct {
	// Caller owns what the call creates.
	Caller string
	// Key is the Idempotency-Key, or "".
	Key string
	// Token is the id of the caller's token, or "".
	Token string
	// Profile is the caller's profile. Trust is the caller's level from 0 to 3.
	Profile string
	Trust   int
	Quotas  v1.Quotas
	// Operator callers may do everything: choose a profile, create tokens, answer approval
	// requests, read all audit records.
	Operator bool
	// Via is the adapter of the call: "http", "mcp", "cli" or "shell".
	Via string
	// By is the person on whose behalf an adapter acts, or "" for the caller.
	By string
}

// Errors of lower layers that adapters distinguish.
type (
	// EmptyError reports that no sandbox is free, and when to try again.
	EmptyError = pool.EmptyError
	// EndedError reports that the lease is over, and why.
	EndedError = scheduler.EndedError
	// PortError reports that a server in the sandbox cannot be reached.
	PortError = scheduler.PortError
)

// LocalCaller is the caller of the service's own socket.
const LocalCaller = "local"

// Stream connects a command's input and output while it runs. If Stdout or Stderr is set, the
// result holds no output.
type Stream struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Started is called once, when the command runs and before any output.
	Started func(id string)
}

func (s Stream) live() bool { return s.Stdout != nil || s.Stderr != nil }

// Limits of requests that the guest does not check.
const (
	maxKey      = 255
	maxLabels   = 64
	maxLabel    = 1024
	maxEnv      = 1024
	maxEnvBytes = 256 << 10
	maxStdin    = 16 << 20
	maxSpool    = wire.SpoolTotal
)

func (c Principal) validate() error {
	if len(c.Key) > maxKey {
		return usererror.Invalid("Idempotency-Key", "is %d bytes long: at most %d", len(c.Key), maxKey)
	}
	if !utf8.ValidString(c.Key) {
		return usererror.Invalid("Idempotency-Key", "is not valid UTF-8")
	}
	return nil
}

func validateEnv(field string, env map[string]string) error {
	if len(env) > maxEnv {
		return usererror.Invalid(field, "has %d entries: at most %d", len(env), maxEnv)
	}
	total := 0
	for k, v := range env {
		total += len(k) + len(v)
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return usererror.Invalid(field, "has a name that is empty or has '=', or a NUL byte: %q", k)
		}
	}
	if total > maxEnvBytes {
		return usererror.Invalid(field, "is %d bytes long: at most %d", total, maxEnvBytes)
	}
	return nil
}

func validateLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return usererror.Invalid("labels", "has %d entries: at most %d", len(labels), maxLabels)
	}
	for k, v := range labels {
		if k == "" || len(k)+len(v) > maxLabel {
			return usererror.Invalid("labels", "has an empty name, or one over %d bytes with its value", maxLabel)
		}
	}
	return nil
}

// command validates a request and converts it to the guest's form.
func (e *Engine) command(id string, x v1.Exec) (wire.Command, error) {
	switch {
	case len(x.Argv) > 0 && x.Command != "":
		return wire.Command{}, usererror.Invalid("command", "and argv are both set: use one of them")
	case len(x.Argv) == 0 && x.Command == "":
		return wire.Command{}, usererror.Invalid("argv", "is empty: give argv, or command for a shell")
	case x.TimeoutMS < 0:
		return wire.Command{}, usererror.Invalid("timeout_ms", "is negative")
	case x.TimeoutMS > e.opts.MaxTimeout.Milliseconds():
		return wire.Command{}, usererror.Invalid("timeout_ms", "is %d: at most %d (exec.max_timeout)", x.TimeoutMS, e.opts.MaxTimeout.Milliseconds())
	case x.MaxOutputBytes < 0 || x.MaxOutputBytes > e.opts.OutputCap:
		return wire.Command{}, usererror.Invalid("max_output_bytes", "is %d: from 0 to %d (exec.output_cap); larger output is for raw streams", x.MaxOutputBytes, e.opts.OutputCap)
	case x.StopAtOutput && x.MaxOutputBytes == 0:
		return wire.Command{}, usererror.Invalid("stop_at_output", "needs max_output_bytes")
	case x.Stdin != "" && x.StdinBase64 != "":
		return wire.Command{}, usererror.Invalid("stdin_base64", "and stdin are both set: use one of them")
	case len(x.Stdin) > maxStdin || len(x.StdinBase64) > maxStdin/3*4:
		return wire.Command{}, usererror.Invalid("stdin", "is over %d bytes: write a file, or stream it", maxStdin)
	}
	if err := validateEnv("env", x.Env); err != nil {
		return wire.Command{}, err
	}
	argv := x.Argv
	if len(argv) == 0 {
		argv = []string{"bash", "-c", x.Command}
	}
	c := wire.Command{ID: id, Argv: argv, Env: x.Env, Cwd: x.Cwd, User: x.User, Timeout: time.Duration(x.TimeoutMS) * time.Millisecond}
	if x.StopAtOutput {
		c.OutputLimit = x.MaxOutputBytes
	}
	return c, nil
}

func stdin(x v1.Exec) (io.Reader, error) {
	switch {
	case x.StdinBase64 != "":
		b, err := base64.StdEncoding.DecodeString(x.StdinBase64)
		if err != nil {
			return nil, usererror.Invalid("stdin_base64", "is not base64")
		}
		return bytes.NewReader(b), nil
	case x.Stdin != "":
		return strings.NewReader(x.Stdin), nil
	}
	return nil, nil
}

// present converts a result to its API form.
func present(id string, r runtime.Result) v1.ExecResult {
	return v1.ExecResult{
		ID: id, Ending: string(r.Ending), ExitCode: r.ExitCode, Signal: r.Signal, DurationMS: r.Duration.Milliseconds(), Detail: r.Detail,
		Usage: v1.Usage{
			CPUUserMS: ms(r.Usage.CPUUser), CPUSystemMS: ms(r.Usage.CPUSystem),
			MemoryPeakBytes: r.Usage.MemoryBytes, PidsPeak: r.Usage.Pids,
		},
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// hash returns the fingerprint of a request for its idempotency key.
func hash(v any) (string, error) {
	sum := sha256.New()
	if err := json.NewEncoder(newlineTrimmer{sum}).Encode(v); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// newlineTrimmer drops the newline that json.Encoder writes after each document.
type newlineTrimmer struct{ w io.Writer }

// Write implements io.Writer.
func (u newlineTrimmer) Write(p []byte) (int, error) {
	_, err := u.w.Write(bytes.TrimSuffix(p, []byte("\n")))
	return len(p), err
}
