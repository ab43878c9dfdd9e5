// Package web is what the orchestrator and its web program say to each other.
// The program is part of the guest's binary, runs in a sandbox as the commands'
// user, and reaches the world through the sandbox's proxy only: a [Request] in
// JSON comes on its standard input, an [Answer] in JSON goes to its standard
// output, and what parses hostile pages is gone with the sandbox. Both sides
// bound what they read from the other.
package web

// Program is the name of the guest's program that reads a Request.
const Program = "web"

// Bounds of both sides.
const (
	MaxRequest = 8 << 20
	MaxAnswer  = 24 << 20
	// MaxBody is what a body may have at most, decompressed, in bytes.
	MaxBody      = 10 << 20
	MaxRedirects = 10
)

// Forms of an answer's content.
const (
	Raw      = "raw"      // the body as it came, in Body
	Markdown = "markdown" // the whole page
	Article  = "article"  // what is to be read of it, as Markdown
	Text     = "text"     // without any markup
)

// What to do about redirects.
const (
	SameHost = "same_host" // follow within the host, report others in RedirectURL
	Follow   = "follow"    // follow
	None     = "none"      // report
)

// Request is one exchange.
type Request struct {
	URL    string `json:"url"`
	Method string `json:"method"`
	// Header are fields in order, names as written.
	Header [][2]string `json:"header,omitempty"`
	Body   []byte      `json:"body,omitempty"`
	// TimeoutMS bounds everything, the conversion too.
	TimeoutMS int64 `json:"timeout_ms"`
	// MaxBytes is how much of a body is read, decompressed; at most MaxBody.
	MaxBytes int64 `json:"max_bytes"`
	// Redirects is SameHost, Follow or None; MaxRedirects bounds hops.
	Redirects    string `json:"redirects"`
	MaxRedirects int    `json:"max_redirects"`
	// Form is Raw, Markdown, Article or Text. What has no such form (an image, a
	// broken PDF) is an Answer with Fault. A body of another media type than HTML
	// and PDF is given as it is.
	Form string `json:"form"`
	// MaxText is how many characters of a converted text are given. 0: all.
	MaxText int `json:"max_text,omitempty"`
	// Proxy is host:port of the sandbox's proxy. Nothing is asked around it.
	Proxy string `json:"proxy"`
	// Roots are the authorities in PEM; empty are those of the image.
	Roots string `json:"roots,omitempty"`
}

// RefusalHeader is set by the gateway on answers of its own, with a fault's kind
// as its value, and dropped by it from what hosts answer. So a host's own 403 is
// an answer, and the gateway's is a fault.
const RefusalHeader = "Orchestrator-Refusal"

// Answer is what came of it. Fault is set, and the rest may be, where it failed.
type Answer struct {
	// URL is the last one asked, after redirects that were followed.
	URL    string      `json:"url"`
	Status int         `json:"status"`
	Header [][2]string `json:"header,omitempty"`
	// RedirectURL is where a redirect that was not followed leads. Its body is given
	// for Raw only.
	RedirectURL string `json:"redirect_url,omitempty"`
	MediaType   string `json:"media_type,omitempty"`
	Charset     string `json:"charset,omitempty"` // that it was decoded from
	Title       string `json:"title,omitempty"`
	Byline      string `json:"byline,omitempty"`
	// Body is there for Raw, Text for the other forms.
	Body []byte `json:"body,omitempty"`
	Text string `json:"text,omitempty"`
	// Form is the one that was given: Markdown for an Article that a page does not
	// have, Text for what is neither HTML nor Raw.
	Form string `json:"form,omitempty"`
	// Bytes are those of the body, decompressed. Truncated: it had more than
	// MaxBytes, or the text more than MaxText.
	Bytes     int64  `json:"bytes"`
	Truncated bool   `json:"truncated,omitempty"`
	Fault     *Fault `json:"fault,omitempty"`
}

// Kinds of faults.
const (
	FaultRequest  = "request"  // the Request is not one
	FaultURL      = "url"      // not to be asked for: scheme, userinfo, host
	FaultDenied   = "denied"   // refused by the egress rules; Message is the gateway's reason
	FaultName     = "name"     // the host has no address
	FaultConnect  = "connect"  // nobody answers there
	FaultTLS      = "tls"      // no trust in the host's certificate, or no TLS
	FaultTimeout  = "timeout"  // took longer than TimeoutMS
	FaultProtocol = "protocol" // what came is not HTTP, or lies about its length
	FaultRedirect = "redirect" // too many, or to what is no place
	FaultContent  = "content"  // has not the form that was asked for
	FaultProgram  = "program"  // the program itself failed
)

// Fault says why there is no whole answer, in a sentence for the caller.
type Fault struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
}
