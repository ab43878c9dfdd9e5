package client

// The methods of a Client are grouped by what they work on. A service is a part of its Client and
// is safe for concurrent use as the Client is.
type (
	// Approvals lists, answers and watches approval requests.
	Approvals struct{ c *Client }
	// Audit reads and verifies the audit log.
	Audit struct{ c *Client }
	// Egress reads and sets what a sandbox may reach.
	Egress struct{ c *Client }
	// Images lists, imports, pulls, builds and removes images.
	Images struct{ c *Client }
	// Jobs runs commands in sandboxes of their own, and keeps their results and output.
	Jobs struct{ c *Client }
	// Overlays compares and commits what leases in overlay mode wrote to workspaces.
	Overlays struct{ c *Client }
	// Snapshots creates and restores snapshots of workspaces.
	Snapshots struct{ c *Client }
	// Templates lists and reloads templates.
	Templates struct{ c *Client }
	// Tokens creates, lists and revokes tokens of callers. It is for operators.
	Tokens struct{ c *Client }
	// Tools lists and calls tools, and reads the outputs of earlier calls.
	Tools struct{ c *Client }
	// Workspaces creates, resizes and deletes workspaces, and accesses their files at rest.
	Workspaces struct{ c *Client }
)

// setServices lets the services use c.
func (c *Client) setServices() {
	c.Approvals, c.Audit, c.Egress, c.Images = Approvals{c}, Audit{c}, Egress{c}, Images{c}
	c.Jobs = Jobs{c}
	c.Overlays, c.Snapshots, c.Templates = Overlays{c}, Snapshots{c}, Templates{c}
	c.Tokens, c.Tools, c.Workspaces = Tokens{c}, Tools{c}, Workspaces{c}
}
