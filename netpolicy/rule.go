package netpolicy

// Protocols of a rule.
const (
	// TLS is a connection that begins with a ClientHello for the host's name.
	TLS = "tls"
	// HTTP is plain HTTP, request by request, in a tunnel or through the proxy.
	HTTP = "http"
	// HTTPS is plain HTTP from the sandbox, and TLS between the gateway and the host. It lets
	// operators apply rules and credentials to requests that are encrypted outside.
	HTTPS = "https"
	// TCP is any protocol.
	TCP = "tcp"
)

// Rule allows connections to hosts, or refuses them if Deny is set. See [Compile] for its meaning.
type Rule struct {
	// Host is a name ("example.com"), all names below one ("*.example.com", without example.com
	// itself), every name ("*"), an address ("203.0.113.7", "2001:db8::1") or a range of addresses
	// ("203.0.113.0/24"). Only the last two allow bare addresses. "*" denies them too.
	Host string `json:"host"`
	// Ports are 1 to 65535 (default: 443 for tls and https, 80 for http). tcp requires ports. A
	// deny rule without ports covers all.
	Ports []int `json:"ports,omitempty"`
	// Protocol is TLS, HTTP, HTTPS or TCP (default: TLS). A deny rule without one covers all.
	Protocol string `json:"protocol,omitempty"`
	// Methods and Paths restrict a rule of HTTP or HTTPS. A path is exact, or a prefix if it ends
	// with *. Empty means all.
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`
	// Deny overrides every rule that allows.
	Deny bool `json:"deny,omitempty"`
}

// Want is a requested connection, before name resolution.
type Want struct {
	// Host is as the client wrote it. Port is the requested port.
	Host string
	Port int
	// Tunnel is set for CONNECT and SOCKS5, whose protocol is not known yet. Otherwise Method and
	// Path are those of a plain HTTP request.
	Tunnel bool
	Method string
	Path   string // escaped as received, without the query
}

// Decision is the decision on a Want.
type Decision struct {
	Allowed bool
	// Host is the name in lower-case ASCII without a final dot, or the address.
	Host string
	// Protocol is what the tunnel may carry. HTTP and HTTPS mean plain HTTP requests, each of which
	// must be decided separately. Port is the port to connect to. It differs from the Want's only
	// for HTTPS.
	Protocol string
	Port     int
	// Reason is one line for the client and the audit log: the rule, or what is missing. It
	// contains no control characters.
	Reason string
	// Rule is the index of the rule that decided, -1 if none did.
	Rule int
}
