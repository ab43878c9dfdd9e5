package wire

// OpBase sets what all commands of the sandbox share: Base → {}. It must come before a claim and
// before any command.
const OpBase Op = "base"

// Base holds defaults for commands. Values of the lease or the command take precedence.
type Base struct {
	// Env is in every command's environment. The lease's and the command's own variables override
	// it.
	Env map[string]string `json:"env,omitempty"`
	// User runs commands without a user, and owns file operations. The format is that of
	// Command.User.
	User string `json:"user,omitempty"`
}
