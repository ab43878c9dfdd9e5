package wire

// Programs are the guest's own programs, see Command.Program. Each is a binary
// beside the guest's, on the host and in RunDir, at ProgramPath of the guest's
// path. A guest may have been installed without.
func Programs() []string { return []string{"web"} }

// ProgramPath is where the program of a guest is.
func ProgramPath(guest, program string) string { return guest + "-" + program }
