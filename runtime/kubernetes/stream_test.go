package kubernetes

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/streaming/pkg/httpstream"
)

// TestServerThatDoesNotWorkKeepsTheProtocol checks which failures of an upgrade say that the server
// refuses WebSockets.
func TestServerThatDoesNotWorkKeepsTheProtocol(t *testing.T) {
	t.Parallel()
	status := func(code int32) error { return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code}} }
	text := func(code int) error {
		return fmt.Errorf("websocket: bad handshake (%d %s): dial failed", code, http.StatusText(code))
	}
	for _, c := range []struct {
		cause error
		want  bool
	}{
		{status(http.StatusInternalServerError), true},
		{status(http.StatusServiceUnavailable), true},
		{status(0), true},
		{text(http.StatusInternalServerError), true},
		{text(http.StatusBadGateway), true},
		{text(http.StatusNotFound), true},
		{status(http.StatusNotFound), true},
		{status(http.StatusBadRequest), false},
		{text(http.StatusBadRequest), false},
		{text(http.StatusNotImplemented), false},
		{errors.New(`invalid protocol, expected one of ["v5.channel.k8s.io"], got ""`), false},
	} {
		if got := away(fmt.Errorf("exec: %w", &httpstream.UpgradeFailureError{Cause: c.cause})); got != c.want {
			t.Errorf("away(%v) = %t, want %t", c.cause, got, c.want)
		}
	}
}
