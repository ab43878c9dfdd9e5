package wire

// Operations that carry connections. On a stream of OpAccept or OpDial nothing
// is framed after Started: what follows in either direction is the
// connection's own bytes. Where the stream can end one direction alone, that is
// the end of the connection's; where it cannot, the end of both.
const (
	// OpEgress switches the proxy on loopback on or off: Egress → {}. Idempotent.
	OpEgress Op = "egress"
	// OpAccept waits for the next connection to that proxy: → Started, bytes.
	OpAccept Op = "accept"
	// OpDial connects to a server on the sandbox's loopback: Dial → Started, bytes.
	OpDial Op = "dial"
)

const (
	// ProxyPort is where the proxy listens, on 127.0.0.1 of the sandbox.
	ProxyPort = 3128
	// MaxEgress is how many connections of the proxy a sandbox has at once, those
	// that wait for a host included, and MaxDials how many there are into it. It is
	// an eighth and a 32nd of the open files that a sandbox may have where that is
	// less. Through a bridge 128 are carried at once.
	MaxEgress = 512
	MaxDials  = 128
)

// Egress says whether commands have a proxy. While it is on, the environment of
// each command that begins names it (ProxyEnv), unless the command's own says
// otherwise.
type Egress struct {
	On bool `json:"on"`
	// Env are further variables of commands, placeholders of credentials above
	// all. Replaced by each switch.
	Env map[string]string `json:"env,omitempty"`
}

// Dial names a server.
type Dial struct {
	Port int `json:"port"` // 1 to 65535
}
