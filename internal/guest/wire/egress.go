package wire

// Operations that carry connections. On a stream of OpAccept or OpDial, Started is followed by the
// raw bytes of the connection in both directions. Each side can end its own direction with
// CloseWrite; closing ends both.
const (
	// OpEgress switches the proxy on loopback on or off: Egress → {}. Idempotent.
	OpEgress Op = "egress"
	// OpAccept waits for the next connection to the proxy: → Started, bytes.
	OpAccept Op = "accept"
	// OpDial connects to a server on the sandbox's loopback: Dial → Started, bytes.
	OpDial Op = "dial"
)

const (
	// ProxyPort is the port of the proxy on 127.0.0.1 of the sandbox.
	ProxyPort = 3128
	// MaxEgress is the maximum number of concurrent connections of the proxy, including those that
	// wait for a host. MaxDials is the maximum number of connections into the sandbox. They are
	// lower if an eighth or a 32nd of the sandbox's open files is less. A bridge carries at most
	// 128 at once.
	MaxEgress = 512
	MaxDials  = 128
)

// Egress switches the commands' proxy. While it is on, new commands get environment variables that
// name the proxy, unless their own environment overrides them.
type Egress struct {
	On bool `json:"on"`
	// Env holds additional variables for commands, such as placeholders for credentials. Each
	// switch replaces it.
	Env map[string]string `json:"env,omitempty"`
}

// Dial names a server on the sandbox's loopback.
type Dial struct {
	Port int `json:"port"` // 1 to 65535
}
