package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// failed gives an error of the network or the library its class, and takes out
// of it what nobody may read: queries of addresses are signatures at times.
func (c *Client) failed(ctx context.Context, what string, known bool, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%s: %w", what, cause)
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		var said []string
		for _, d := range e.Errors {
			said = append(said, clip(string(d.Code)+": "+d.Message))
		}
		return fmt.Errorf("%s: %w", what, refusal(e.StatusCode, clip(strings.Join(said, "; ")), known))
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	for _, class := range []error{errdefs.ErrFailedPrecondition, errdefs.ErrUnavailable, errdefs.ErrResourceExhausted, errdefs.ErrInvalidArgument} {
		if errors.Is(err, class) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "server gave HTTP response to HTTPS client"), strings.Contains(text, "images.insecure"):
		return fmt.Errorf("%s: the registry does not speak TLS: list it in images.insecure to speak plain HTTP to it: %w", what, errdefs.ErrFailedPrecondition)
	case strings.Contains(text, "x509: "):
		return fmt.Errorf("%s: %s: the certificate authorities are the system's; SSL_CERT_FILE names others: %w", what, clip(text), errdefs.ErrFailedPrecondition)
	}
	if before, _, found := strings.Cut(text, "no token in bearer response"); found {
		text = before + "the token server answers without a token"
	}
	return fmt.Errorf("%s: %s: %w", what, clip(text), errdefs.ErrUnavailable)
}

// refusal is what a status means; said is the registry's own words.
func refusal(status int, said string, known bool) error {
	if said != "" {
		said = " (" + said + ")"
	}
	switch {
	case status == http.StatusNotFound:
		return fmt.Errorf("the registry does not have it%s: %w", said, errdefs.ErrNotFound)
	case (status == http.StatusUnauthorized || status == http.StatusForbidden) && known:
		return fmt.Errorf("the registry refuses the credentials of the Docker configuration%s: %w", said, errdefs.ErrFailedPrecondition)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return fmt.Errorf("the registry wants credentials, or has no such image; there are none for it in the Docker configuration (DOCKER_CONFIG, docker login)%s: %w", said, errdefs.ErrFailedPrecondition)
	case status == http.StatusTooManyRequests:
		return fmt.Errorf("the registry says that there were too many requests; ask again later%s: %w", said, errBusy)
	case status >= http.StatusInternalServerError:
		return fmt.Errorf("the registry answers with status %d%s: %w", status, said, errBusy)
	}
	return fmt.Errorf("the registry answers with status %d%s: %w", status, said, errdefs.ErrFailedPrecondition)
}

// errBusy is for an answer that was waited for long enough.
var errBusy = fmt.Errorf("it was asked several times: %w", errdefs.ErrUnavailable)

func refused(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrFailedPrecondition)
}

// clip keeps foreign text in messages short.
func clip(s string) string {
	const most = 300
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "�")
}
