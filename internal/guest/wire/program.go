package wire

// Programs lists the guest's own programs, see Command.Program. Each is a binary next to the
// guest's, on the host and in RunDir, at ProgramPath. A guest may be installed without them.
func Programs() []string { return []string{"web"} }

// ProgramPath returns the path of a program of the guest at path guest.
func ProgramPath(guest, program string) string { return guest + "-" + program }
