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

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// failed classifies an error of the network or the library. It removes URLs, because their queries
// can contain signatures.
func (c *Client) failed(ctx context.Context, what string, known bool, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%s: %w", what, cause)
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		var details []string
		for _, d := range e.Errors {
			details = append(details, clip.Message(string(d.Code)+": "+d.Message))
		}
		return fmt.Errorf("%s: %w", what, refusal(e.StatusCode, clip.Message(strings.Join(details, "; ")), known))
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	for _, class := range []error{errdefs.ErrFailedPrecondition, errdefs.ErrUnavailable, errdefs.ErrResourceExhausted,
		errdefs.ErrInvalidArgument} {
		if errors.Is(err, class) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "server gave HTTP response to HTTPS client"), strings.Contains(text, "images.insecure"):
		return fmt.Errorf("%s: registry does not support TLS: add it to images.insecure to allow plain HTTP: %w",
			what, errdefs.ErrFailedPrecondition)
	case strings.Contains(text, "x509: "):
		return fmt.Errorf("%s: %s: add the certificate authority to the system, or set SSL_CERT_FILE: %w",
			what, clip.Message(text), errdefs.ErrFailedPrecondition)
	}
	if before, _, found := strings.Cut(text, "no token in bearer response"); found {
		text = before + "the token server sent no token"
	}
	return fmt.Errorf("%s: %s: %w", what, clip.Message(text), errdefs.ErrUnavailable)
}

// refusal returns the error for a status. detail is text of the registry, or "".
func refusal(status int, detail string, known bool) error {
	if detail != "" {
		detail = " (" + detail + ")"
	}
	switch {
	case status == http.StatusNotFound:
		return fmt.Errorf("not found in the registry%s: %w", detail, errdefs.ErrNotFound)
	case (status == http.StatusUnauthorized || status == http.StatusForbidden) && known:
		return fmt.Errorf("registry refuses the credentials of the Docker configuration%s: %w",
			detail, errdefs.ErrFailedPrecondition)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return fmt.Errorf("image not found, or the registry requires credentials: "+
			"none in the Docker configuration (DOCKER_CONFIG, docker login)%s: %w", detail,
			errdefs.ErrFailedPrecondition)
	case status == http.StatusTooManyRequests:
		return fmt.Errorf("registry reports too many requests: try again later%s: %w", detail, errBusy)
	case status >= http.StatusInternalServerError:
		return fmt.Errorf("registry sent status %d%s: %w", status, detail, errBusy)
	}
	return fmt.Errorf("registry sent status %d%s: %w", status, detail, errdefs.ErrFailedPrecondition)
}

// errBusy reports that a registry stayed busy over all attempts.
var errBusy = fmt.Errorf("several attempts failed: %w", errdefs.ErrUnavailable)

func refused(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrFailedPrecondition)
}
