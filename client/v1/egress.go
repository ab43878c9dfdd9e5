package v1

import "time"

// EgressRule allows connections out of a sandbox, or with Deny refuses them.
type EgressRule struct {
	// Host is a name, all names below one ("*.example.com"), every name ("*"), an
	// address or a range of addresses.
	Host string `json:"host"`
	// Ports: empty are 443 for tls and https, 80 for http; tcp has to name them.
	Ports []int `json:"ports,omitempty"`
	// Protocol is "tls" (the default), "http", "https" (http inside, TLS from the
	// gateway on) or "tcp".
	Protocol string `json:"protocol,omitempty"`
	// Methods and Paths narrow a rule of http and https. A path is exact, or ends
	// with *.
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`
	Deny    bool     `json:"deny,omitempty"`
}

// Egress is what a sandbox may reach: nothing, if it has no rules. Rules that
// deny win. A caller's own bounds stand over it.
type Egress struct {
	Rules []EgressRule `json:"rules"`
	// Secrets are names of credentials of the service that the gateway sets on
	// requests to their hosts.
	Secrets []string `json:"secrets,omitempty"`
}

// EgressState is that with what came of it.
type EgressState struct {
	Egress
	// Open is how many connections there are now; Sent and Received are bytes so
	// far, of all.
	Open     int   `json:"open"`
	Sent     int64 `json:"sent"`
	Received int64 `json:"received"`
	Allowed  int64 `json:"allowed"`
	Refused  int64 `json:"refused"`
	// Recent are the last connections that ended or were refused, newest first.
	Recent []EgressConnection `json:"recent"`
}

// EgressConnection is one connection, or one request of plain HTTP.
type EgressConnection struct {
	Time     time.Time `json:"time"`
	Host     string    `json:"host"`
	Port     int       `json:"port"`
	Protocol string    `json:"protocol,omitempty"`
	Method   string    `json:"method,omitempty"`
	Path     string    `json:"path,omitempty"`
	Address  string    `json:"address,omitempty"` // that was connected to
	Allowed  bool      `json:"allowed"`
	Reason   string    `json:"reason"`
	Sent     int64     `json:"sent"`
	Received int64     `json:"received"`
	// DurationMS is in milliseconds.
	DurationMS float64 `json:"duration_ms"`
}

// PortProtocol is what a connection is upgraded to that carries the bytes of one
// to a server on a sandbox's loopback.
const PortProtocol = "tcp"
