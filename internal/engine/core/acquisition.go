package core

import (
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// Egress is the egress that the engine requests for a tool. The caller's ceiling does not
// apply.
type Egress struct {
	Rules []netpolicy.Rule
	// Ceiling, if set, also has to allow each connection.
	Ceiling *netpolicy.Rules
	// Secrets are added by the gateway. They are neither stored nor named.
	Secrets []netpolicy.Secret
}

// Acquisition holds what the engine adds to a lease request.
type Acquisition struct {
	// OneShot marks a sandbox that ends after one command or call.
	OneShot bool
	// Session is the name of the session, or "".
	Session string
	// Alias maps paths of the sandbox to the targets of their symlinks.
	Alias map[string]string
	// Egress is a tool's egress, which replaces the request's.
	Egress *Egress
	// Private marks a sandbox of a tool that its caller cannot use directly.
	Private bool
	// Attempt is the attempt of a job's command that the sandbox is for, or "".
	Attempt string
	// Queued, if set, has the engine's own queue start the sandbox.
	Queued *scheduler.Queued
	// Network is the profile's network, or "".
	Network string
}
