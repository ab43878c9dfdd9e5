package engine

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

// Bounds of an answer's small parts. The program that wrote it has read what a
// host sent, so it may be the host's by now.
const (
	maxWebText   = 1 << 10
	maxWebURL    = 16 << 10
	maxWebFields = 200
	maxWebHeader = 1 << 20
)

// maxAnswerBytes is how long an answer to r may be, in JSON: a body is in base64,
// and any character of a text may be escaped.
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

// headerFields are a header in JSON with a bound: many empty ones take far more memory
// than text.
type headerFields [][2]string

// UnmarshalJSON ends at the first field that is too many.
func (f *headerFields) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	t, err := d.Token()
	if err != nil || t == nil {
		return err
	}
	if t != json.Delim('[') {
		return errors.New("a header that is no list")
	}
	for size := 0; d.More(); {
		var one [2]string
		if err := d.Decode(&one); err != nil {
			return err
		}
		size += len(one[0]) + len(one[1])
		if len(*f) == maxWebFields || size > maxWebHeader {
			return errors.New("a header that is too long")
		}
		if !httpguts.ValidHeaderFieldName(one[0]) {
			return errors.New("a field without a name")
		}
		one[1] = web.Plain(one[1])
		*f = append(*f, one)
	}
	return nil
}

// webFaults are the kinds that there are.
var webFaults = []string{
	web.FaultRequest, web.FaultURL, web.FaultDenied, web.FaultName, web.FaultConnect, web.FaultTLS, web.FaultTimeout, web.FaultProtocol,
	web.FaultRedirect, web.FaultContent, web.FaultProgram,
}

// readAnswer reads what the web program wrote about a request, and bounds it.
func readAnswer(b []byte, r web.Request) (web.Answer, error) {
	var got struct {
		web.Answer
		Header headerFields `json:"header"`
	}
	if err := json.Unmarshal(b, &got); err != nil {
		return web.Answer{}, fmt.Errorf("an answer of %d bytes that cannot be read: %w: %w", len(b), err, errdefs.ErrUnavailable)
	}
	a := got.Answer
	a.Header, a.Text = got.Header, web.Plain(a.Text)
	switch {
	case a.Fault != nil && !slices.Contains(webFaults, a.Fault.Kind):
		return web.Answer{}, fmt.Errorf("a fault that there is not: %w", errdefs.ErrUnavailable)
	case a.Fault == nil && (a.Status < 200 || a.Status > 999):
		return web.Answer{}, fmt.Errorf("the status %d: %w", a.Status, errdefs.ErrUnavailable)
	case a.Fault == nil && !isWebAddress(a.URL), a.RedirectURL != "" && !isWebAddress(a.RedirectURL):
		return web.Answer{}, fmt.Errorf("an address that is none: %w", errdefs.ErrUnavailable)
	case int64(len(a.Body)) > r.MaxBytes, a.Bytes < 0, r.MaxText > 0 && utf8.RuneCountInString(a.Text) > r.MaxText:
		return web.Answer{}, fmt.Errorf("more than was asked for: %w", errdefs.ErrUnavailable)
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

// oneLine is a text as one bounded line.
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
