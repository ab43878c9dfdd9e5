// Package web defines the JSON protocol between the orchestrator and guest-web, a separate binary
// that runs in a sandbox as the user of commands. guest-web reads a [Request] on standard input,
// connects only to the proxy of the sandbox, and writes an [Answer] to standard output. It is
// destroyed with its sandbox, because it parses untrusted pages. Both sides bound what they read.
package web

// Program is the name of the program that reads a Request.
const Program = "web"

// Bounds for both sides, in bytes.
const (
	MaxRequest = 8 << 20
	MaxAnswer  = 24 << 20
	// MaxBody is the maximum size of a decompressed body.
	MaxBody      = 10 << 20
	MaxRedirects = 10
)

// Forms of the content in an Answer.
const (
	Raw      = "raw"      // the unchanged body, in Body
	Markdown = "markdown" // the whole page
	Article  = "article"  // the main article, as Markdown
	Text     = "text"     // plain text
)

// Values of Request.Redirects.
const (
	SameHost = "same_host" // follow on the same host, report others in RedirectURL
	Follow   = "follow"    // follow all
	None     = "none"      // report all in RedirectURL
)

// Request describes one HTTP exchange.
type Request struct {
	URL    string `json:"url"`
	Method string `json:"method"`
	// Header lists header fields in order, with names as written.
	Header [][2]string `json:"header,omitempty"`
	Body   []byte      `json:"body,omitempty"`
	// TimeoutMS bounds the exchange and the conversion.
	TimeoutMS int64 `json:"timeout_ms"`
	// MaxBytes is the maximum number of decompressed body bytes to read; at most MaxBody.
	MaxBytes int64 `json:"max_bytes"`
	// Redirects is SameHost, Follow or None. MaxRedirects is the maximum number of hops.
	Redirects    string `json:"redirects"`
	MaxRedirects int    `json:"max_redirects"`
	// Form is Raw, Markdown, Article or Text. A body that cannot have that form, such as an image
	// or a broken PDF, gives a Fault. Text in other formats than HTML and PDF is returned
	// unchanged.
	Form string `json:"form"`
	// MaxText is the maximum length of converted text in characters; 0 means no limit.
	MaxText int `json:"max_text,omitempty"`
	// Proxy is host:port of the proxy in the sandbox. Every request uses it.
	Proxy string `json:"proxy"`
	// Roots are certificate authorities in PEM; empty means those of the image.
	Roots string `json:"roots,omitempty"`
}

// RefusalHeader marks responses of the gateway itself. Its value is the kind of the fault. The
// gateway removes it from responses of hosts, so that a 403 of a host is an answer and one of the
// gateway a fault.
const RefusalHeader = "Orchestrator-Refusal"

// Answer is the result of a Request. If Fault is set, the other fields may be incomplete.
type Answer struct {
	// URL is the last requested URL, after redirects.
	URL    string      `json:"url"`
	Status int         `json:"status"`
	Header [][2]string `json:"header,omitempty"`
	// RedirectURL is the target of a redirect that was not followed. Its body is returned only for
	// Raw.
	RedirectURL string `json:"redirect_url,omitempty"`
	MediaType   string `json:"media_type,omitempty"`
	Charset     string `json:"charset,omitempty"` // charset of the body
	Title       string `json:"title,omitempty"`
	Byline      string `json:"byline,omitempty"`
	// Body is set for Raw, Text for the other forms.
	Body []byte `json:"body,omitempty"`
	Text string `json:"text,omitempty"`
	// Form is the form of the content: Markdown if a page has no article, Text for PDFs and other
	// text.
	Form string `json:"form,omitempty"`
	// Bytes is the decompressed size of the body. Truncated reports that it had more than MaxBytes,
	// or the text more than MaxText.
	Bytes     int64  `json:"bytes"`
	Truncated bool   `json:"truncated,omitempty"`
	Fault     *Fault `json:"fault,omitempty"`
}
