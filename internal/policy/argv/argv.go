// Package argv decides on an argument vector that is run without a shell: which
// programs are allowed, by which arguments a harmless program writes or runs
// another, and which arguments name a place outside the workspace. The
// orchestrator asks it, and the guest asks it again in the sandbox, right before
// it would run the program; so it imports next to nothing.
package argv

// Rules are what may run. They are data: a profile holds them, and the host
// sends them to the guest with a command.
type Rules struct {
	// Programs are the only ones that may run, by name, with what is special
	// about their arguments.
	Programs map[string]Program `json:"programs"`
	// Root is the folder that path arguments must be in; empty: anywhere.
	Root string `json:"root,omitempty"`
}

// Program is what is special about one program's arguments.
type Program struct {
	// DenyFlags are flags by which it writes, or runs something.
	DenyFlags []string `json:"deny_flags,omitempty"`
}
