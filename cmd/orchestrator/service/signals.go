package service

import (
	"context"
	"errors"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// startError returns nil for a start that a signal interrupted.
func startError(ctx context.Context, err error) error {
	if _, asked := errors.AsType[*cli.Interrupted](context.Cause(ctx)); asked {
		return nil
	}
	return err
}
