package v1

import "time"

// EgressRule allows connections out of a sandbox, or refuses them if Deny is set.
type EgressRule struct {
	// Host is a name, all names below one ("*.example.com"), all names ("*"), an IP address, or a
	// range of addresses in CIDR notation.
	Host string `json:"host"`
	// Ports default to 443 for tls and https, and to 80 for http. For tcp they are required.
	Ports []int `json:"ports,omitempty"`
	// Protocol is "tls" (the default), "http", "https" or "tcp". With https, the sandbox sends
	// plain HTTP and the gateway adds TLS.
	Protocol string `json:"protocol,omitempty"`
	// Methods and Paths restrict a rule for http or https. A path is exact unless it ends with *.
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`
	Deny    bool     `json:"deny,omitempty"`
}

// Egress is what a sandbox may connect to. Without rules it can connect to nothing. Deny rules take
// precedence. The caller's own limits apply as well.
type Egress struct {
	Rules []EgressRule `json:"rules"`
	// Secrets are names of the service's credentials. The gateway adds them to requests to their
	// hosts.
	Secrets []string `json:"secrets,omitempty"`
}

// EgressState is the egress of a sandbox with its traffic counters.
type EgressState struct {
	Egress
	// Open is the number of open connections. Sent and Received are total bytes of all connections,
	// Allowed and Refused total connections.
	Open     int   `json:"open"`
	Sent     int64 `json:"sent"`
	Received int64 `json:"received"`
	Allowed  int64 `json:"allowed"`
	Refused  int64 `json:"refused"`
	// Recent are the last connections that ended or were refused, newest first.
	Recent []EgressConnection `json:"recent"`
}

// EgressConnection is one connection, or one plain HTTP request.
type EgressConnection struct {
	Time     time.Time `json:"time"`
	Host     string    `json:"host"`
	Port     int       `json:"port"`
	Protocol string    `json:"protocol,omitempty"`
	Method   string    `json:"method,omitempty"`
	Path     string    `json:"path,omitempty"`
	Address  string    `json:"address,omitempty"` // the address connected to
	Allowed  bool      `json:"allowed"`
	Reason   string    `json:"reason"`
	Sent     int64     `json:"sent"`
	Received int64     `json:"received"`
	// DurationMS is the duration in milliseconds.
	DurationMS float64 `json:"duration_ms"`
}

// PortProtocol is the value of the Upgrade header for a connection to a port of a sandbox.
const PortProtocol = "tcp"
