package netpolicy

// Protocols of a rule: what may be spoken over a connection that it allows.
const (
	// TLS is a connection that begins with a ClientHello for the host's name.
	TLS = "tls"
	// HTTP is plain HTTP, request by request, in a tunnel or through the proxy.
	HTTP = "http"
	// HTTPS is plain HTTP inside, and TLS between the gateway and the host: the
	// operator's opt-in to rules and credentials on what is encrypted outside.
	HTTPS = "https"
	// TCP is anything.
	TCP = "tcp"
)

// Rule allows connections to hosts, or with Deny refuses them. It is a value;
// what it means stands at [Compile].
type Rule struct {
	// Host is a name ("example.com"), all names below one ("*.example.com", not
	// example.com itself), every name ("*"), an address ("203.0.113.7",
	// "2001:db8::1") or a range of addresses ("203.0.113.0/24"). Only the last
	// two allow bare addresses; "*" denies them too.
	Host string `json:"host"`
	// Ports are 1 to 65535. Empty: 443 for tls and https, 80 for http; tcp has to
	// name them. A rule that denies and names none is about all.
	Ports []int `json:"ports,omitempty"`
	// Protocol is TLS, HTTP, HTTPS or TCP; empty is TLS. A rule that denies and
	// names none is about all.
	Protocol string `json:"protocol,omitempty"`
	// Methods and Paths narrow a rule of HTTP and HTTPS. A path is exact, or ends
	// with * for all that begin with it. Empty: all.
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`
	// Deny wins over every rule that allows.
	Deny bool `json:"deny,omitempty"`
}

// Want is what is asked for, before anything was resolved.
type Want struct {
	// Host is as the client wrote it; Port is what it wants to reach.
	Host string
	Port int
	// Tunnel: bytes are to be carried (CONNECT, SOCKS5), and what is spoken over
	// them is not known yet. Without it Method and Path are those of a request of
	// plain HTTP.
	Tunnel bool
	Method string
	Path   string // escaped, as it came; a query is not looked at
}

// Decision is the answer to a Want.
type Decision struct {
	Allowed bool
	// Host is the name in lower-case ASCII without a last dot, or the address.
	Host string
	// Protocol is what the tunnel has to carry; for HTTP and HTTPS that are requests
	// of plain HTTP, each of which has to be decided by itself. Port is where the
	// connection goes, another one than that of the Want for HTTPS alone.
	Protocol string
	Port     int
	// Reason is one line for whoever asked and for the audit: which rule, or what
	// is missing. It holds no control characters.
	Reason string
	// Rule is the index of the rule that decided, -1 if none did.
	Rule int
}
