package v1

import "time"

// ServiceEvent is an event of GET /v1/events. Fields that do not apply to its type are empty.
type ServiceEvent struct {
	// ID increases with every event, also across restarts. Send it as Last-Event-ID to continue
	// after this event.
	ID int64     `json:"id"`
	At time.Time `json:"at"`
	// Type is one of
	//
	//	sandbox.creating sandbox.warm sandbox.leased sandbox.stopping sandbox.gone sandbox.failed
	//	shell.started shell.ended
	//	workspace.created workspace.removed
	//	template.ready template.changed template.resized template.removed template.not_ready
	//	image.imported image.pulled image.removed
	//	job.created job.held job.running job.stopping job.ended
	//
	// or "gap": earlier events were dropped and not sent.
	Type      string `json:"type"`
	Caller    string `json:"caller,omitempty"`
	Sandbox   string `json:"sandbox,omitempty"`
	Shell     string `json:"shell,omitempty"`
	Template  string `json:"template,omitempty"`
	Workspace string `json:"workspace,omitempty"`
	Image     string `json:"image,omitempty"`
	Job       string `json:"job,omitempty"`
	// Reason says why it happened, if known. Of job.ended it is the job's ending.
	Reason string `json:"reason,omitempty"`
}
