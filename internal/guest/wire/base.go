package wire

// OpBase sets what all commands of the sandbox have: Base → {}. It is for a
// sandbox that no lease has claimed, before anything runs in it.
const OpBase Op = "base"

// Base is what a command has that neither its lease nor its caller says
// anything about.
type Base struct {
	// Env is in every command's environment, before the lease's and the command's
	// own.
	Env map[string]string `json:"env,omitempty"`
	// User runs commands that name none, and touches files: as Command.User.
	User string `json:"user,omitempty"`
}
