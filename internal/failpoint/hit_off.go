//go:build !faults

package failpoint

// Enabled says whether this build can be made to die.
const Enabled = false

// Hit does nothing in this build.
func Hit(string) {}
