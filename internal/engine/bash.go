package engine

import (
	"errors"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
)

// startProgram calls start, which runs *program. If fallback is set and the sandbox has no bash,
// *program becomes sh. The lease remembers that bash is missing.
func startProgram[T any](use *scheduler.Use, fallback bool, program *string, start func() (T, error)) (T, error) {
	chooseProgram(use, fallback, program)
	v, err := start()
	if fallback && *program == "bash" && isMissingProgram(err) {
		use.NoBash().Store(true)
		*program = "sh"
		v, err = start() // Nothing ran before, so stdin is unread.
	}
	return v, err
}

// chooseProgram sets *program to sh if fallback is set and bash is known to be missing.
func chooseProgram(use *scheduler.Use, fallback bool, program *string) {
	if fallback && use.NoBash().Load() {
		*program = "sh"
	}
}

func isMissingProgram(err error) bool {
	g, ok := errors.AsType[*guest.Error](err)
	return ok && g.Field == "argv" && errdefs.IsNotFound(err)
}
