//go:build !faults

package failpoint

import "testing"

func TestDoesNothingInANormalBuild(t *testing.T) {
	t.Setenv(Env, "point")
	if Enabled {
		t.Fatal("fault points are on in a normal build")
	}
	Hit("point")
}
