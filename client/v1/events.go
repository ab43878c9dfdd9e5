package v1

import "time"

// ServiceEvent is something that happened in the service, as GET /v1/events
// tells it: a kind, and what it is about. What does not apply is empty.
type ServiceEvent struct {
	// ID rises from event to event, over restarts too: what was seen last is
	// asked for with Last-Event-ID.
	ID int64     `json:"id"`
	At time.Time `json:"at"`
	// Type is one of
	//
	//	sandbox.creating sandbox.warm sandbox.leased sandbox.stopping sandbox.gone sandbox.failed
	//	shell.started shell.ended
	//	workspace.created workspace.removed
	//	template.ready template.changed template.resized template.removed template.not_ready
	//	image.imported image.pulled image.removed
	//
	// or "gap": events before this one are not kept, and were not told.
	Type      string `json:"type"`
	Caller    string `json:"caller,omitempty"`
	Sandbox   string `json:"sandbox,omitempty"`
	Shell     string `json:"shell,omitempty"`
	Template  string `json:"template,omitempty"`
	Workspace string `json:"workspace,omitempty"`
	Image     string `json:"image,omitempty"`
	// Reason says why, where there is a why.
	Reason string `json:"reason,omitempty"`
}
