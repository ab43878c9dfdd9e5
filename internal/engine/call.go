package engine

import (
	"bytes"
	"encoding/base64"
	"io"
	"strings"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Limits of requests that the guest does not check.
const (
	maxLabels = 64
	maxLabel  = 1024
	maxStdin  = 16 << 20
	maxSpool  = wire.SpoolTotal
)

func validateEnv(field string, env map[string]string) error {
	if len(env) > core.MaxEnv {
		return usererror.Invalid(field, "has %d entries: at most %d", len(env), core.MaxEnv)
	}
	total := 0
	for k, v := range env {
		total += len(k) + len(v)
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return usererror.Invalid(field, "has a name that is empty or has '=', or a NUL byte: %q", k)
		}
	}
	if total > core.MaxEnvBytes {
		return usererror.Invalid(field, "is %d bytes long: at most %d", total, core.MaxEnvBytes)
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
	case x.TimeoutMS > e.limits.MaxTimeout.Milliseconds():
		return wire.Command{}, usererror.Invalid(
			"timeout_ms",
			"is %d: at most %d (exec.max_timeout)",
			x.TimeoutMS,
			e.limits.MaxTimeout.Milliseconds(),
		)
	case x.MaxOutputBytes < 0 || x.MaxOutputBytes > e.limits.OutputCap:
		return wire.Command{}, usererror.Invalid(
			"max_output_bytes",
			"is %d: from 0 to %d (exec.output_cap); larger output is for raw streams",
			x.MaxOutputBytes,
			e.limits.OutputCap,
		)
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
	c := wire.Command{
		ID:      id,
		Argv:    argv,
		Env:     x.Env,
		Cwd:     x.Cwd,
		User:    x.User,
		Timeout: time.Duration(x.TimeoutMS) * time.Millisecond,
	}
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
			CPUUserMS: core.Milliseconds(r.Usage.CPUUser), CPUSystemMS: core.Milliseconds(r.Usage.CPUSystem),
			MemoryPeakBytes: r.Usage.MemoryBytes, PidsPeak: r.Usage.Pids,
		},
	}
}
