package v1

// Readiness is the answer of GET /readyz with status 200: at least one template can be leased.
type Readiness struct {
	// Status is "ready".
	Status    string              `json:"status" enum:"ready"`
	Templates []TemplateReadiness `json:"templates"`
}

// NotReady is the answer of GET /readyz with status 503: no call would get a sandbox. Templates is
// empty if no template is configured, or while the service starts or stops.
type NotReady struct {
	Problem
	Templates []TemplateReadiness `json:"templates"`
}

// TemplateReadiness says whether a template can be leased.
type TemplateReadiness struct {
	Name string `json:"name"`
	// State is "ready"; "not_ready" if the template cannot be used, for example because its image is
	// missing; or "failing" if it can be used, but the last creations of sandboxes all failed.
	State string `json:"state" enum:"ready,not_ready,failing"`
	// Error says why the state is not "ready". Only operators see the whole reason.
	Error string `json:"error,omitempty"`
	// Default marks the template of requests that name none.
	Default bool `json:"default,omitempty"`
}
