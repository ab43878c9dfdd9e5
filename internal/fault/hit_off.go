//go:build !faults

package fault

// Enabled says whether this build can be made to die.
const Enabled = false

// Hit does nothing in this build.
func Hit(string) {}
