package cli

import "testing"

func TestNeedsLinuxAdvice(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{
			NeedsLinux("serve"),
			"serve needs Linux: start `orchestrator serve` on a Linux host and name it with --address and --token-file",
		},
		{NeedsLinuxHost("doctor"), "doctor needs Linux: run it on a Linux host"},
	} {
		if got, code := Describe(c.err), ExitCode(c.err); got != c.want || code != ExitPrecondition {
			t.Errorf("error is %q with exit code %d, want %q with %d", got, code, c.want, ExitPrecondition)
		}
	}
}
