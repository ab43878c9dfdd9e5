package server

import (
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy/argv"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestOwnPrograms(t *testing.T) {
	s := testServer(t, false)
	a, r := run1(t, s, wire.Command{Program: "echo", Argv: []string{"a", "b"}})
	wantEnding(t, r, runtime.Exited, 0)
	if a.stdout.String() != "a b\n" {
		t.Errorf(`echo wrote %q, want "a b\n"`, a.stdout.String())
	}
	for _, c := range []struct {
		cmd   wire.Command
		code  wire.Code
		field string
	}{
		{wire.Command{Program: "sh"}, wire.InvalidArgument, "program"},
		{wire.Command{Program: "../sh"}, wire.InvalidArgument, "program"},
		{wire.Command{Program: "none"}, wire.FailedPrecondition, "program"},
		{wire.Command{Program: "echo", Check: &argv.Rules{}}, wire.InvalidArgument, "check"},
		{wire.Command{Program: "echo", Argv: []string{"\x00"}}, wire.InvalidArgument, "argv"},
	} {
		if a := dial(t, s, wire.OpExec, c.cmd).all(); a.failure == nil || a.failure.Code != c.code ||
			a.failure.Field != c.field {
			t.Errorf("exec of %+v: %s, want %s of field %s", c.cmd, describe(a.failure), c.code, c.field)
		}
	}
}
