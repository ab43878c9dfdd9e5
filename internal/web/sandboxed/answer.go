package sandboxed

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"golang.org/x/net/http/httpguts"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// Limits of an answer's small fields. The answer is untrusted: the web program parses data of the
// remote host and may be compromised.
const (
	maxWebText   = 1 << 10
	maxWebURL    = 16 << 10
	maxWebFields = 200
	maxWebHeader = 1 << 20
)

// maxAnswerBytes returns the maximum size of the JSON answer to r. A body is base64, and each
// character of a text may be escaped.
func maxAnswerBytes(r web.Request) int {
	most := r.MaxBytes * 3 / 2
	if r.Form != web.Raw {
		most = 6 * int64(r.MaxText)
	}
	if most == 0 {
		return web.MaxAnswer
	}
	return int(min(most+2*maxWebHeader, web.MaxAnswer))
}

// headerFields decodes a header from JSON with a limit. Without it, many empty fields would take
// far more memory than their JSON.
type headerFields [][2]string

// UnmarshalJSON implements json.Unmarshaler. It fails at the first field over the limits.
func (f *headerFields) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	t, err := d.Token()
	if err != nil || t == nil {
		return err
	}
	if t != json.Delim('[') {
		return errors.New("header is not a list")
	}
	for size := 0; d.More(); {
		var one [2]string
		if err := d.Decode(&one); err != nil {
			return err
		}
		size += len(one[0]) + len(one[1])
		if len(*f) == maxWebFields || size > maxWebHeader {
			return errors.New("header is too long")
		}
		if !httpguts.ValidHeaderFieldName(one[0]) {
			return errors.New("invalid header field name")
		}
		one[1] = web.Plain(one[1])
		*f = append(*f, one)
	}
	return nil
}

// webFaults lists the valid fault kinds.
var webFaults = []string{
	web.FaultRequest, web.FaultURL, web.FaultDenied, web.FaultName, web.FaultConnect, web.FaultTLS, web.FaultTimeout, web.FaultProtocol,
	web.FaultRedirect, web.FaultContent, web.FaultProgram,
}

// readAnswer decodes and validates the web program's answer to r.
func readAnswer(b []byte, r web.Request) (web.Answer, error) {
	var got struct {
		web.Answer
		Header headerFields `json:"header"`
	}
	if err := json.Unmarshal(b, &got); err != nil {
		return web.Answer{}, fmt.Errorf("decode an answer of %d bytes: %w: %w", len(b), err, errdefs.ErrUnavailable)
	}
	a := got.Answer
	a.Header, a.Text = got.Header, web.Plain(a.Text)
	switch {
	case a.Fault != nil && !slices.Contains(webFaults, a.Fault.Kind):
		return web.Answer{}, fmt.Errorf("unknown fault kind: %w", errdefs.ErrUnavailable)
	case a.Fault == nil && (a.Status < 200 || a.Status > 999):
		return web.Answer{}, fmt.Errorf("invalid status %d: %w", a.Status, errdefs.ErrUnavailable)
	case a.Fault == nil && !isWebAddress(a.URL), a.RedirectURL != "" && !isWebAddress(a.RedirectURL):
		return web.Answer{}, fmt.Errorf("invalid address: %w", errdefs.ErrUnavailable)
	case int64(len(a.Body)) > r.MaxBytes, a.Bytes < 0, r.MaxText > 0 && utf8.RuneCountInString(a.Text) > r.MaxText:
		return web.Answer{}, fmt.Errorf("answer exceeds the requested size: %w", errdefs.ErrUnavailable)
	}
	for _, s := range []*string{&a.MediaType, &a.Charset, &a.Title, &a.Byline} {
		*s = oneLine(*s)
	}
	if a.Fault != nil {
		a.Fault.Message = oneLine(a.Fault.Message)
	}
	return a, nil
}

func isWebAddress(s string) bool {
	if len(s) > maxWebURL || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return false
	}
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.User == nil
}

// oneLine returns s as a single line of at most maxWebText bytes.
func oneLine(s string) string {
	if len(s) > maxWebText {
		s = s[:maxWebText] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}
