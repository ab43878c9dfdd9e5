package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// eventsAfter is how long a pod may take to start before its events are read. A pod that starts
// well costs no request.
const eventsAfter = time.Second

// watchEvents calls found with the first event that says why the pod will not start, until ctx
// ends. A kubelet reports an image that it cannot pull as an event at once, and in the pod's status
// only after its next attempt, 10 to 15 s later. Without permission for events it returns, and the
// status has to do.
func (s *Sandbox) watchEvents(ctx context.Context, image string, found func(error)) {
	select {
	case <-time.After(eventsAfter):
	case <-ctx.Done():
		return
	}
	o := metav1.ListOptions{FieldSelector: "type=Warning,involvedObject.uid=" + string(s.uid)}
	list := new(corev1.EventList)
	get := func() error {
		a := s.d.api
		return a.core.Get().Namespace(a.namespace).Resource("events").VersionedParams(&o, a.params).Do(ctx).Into(list)
	}
	if err := get(); err != nil {
		s.d.log.Debug("events of a pod cannot be read", "pod", s.name, "error", err)
		return
	}
	for i := range list.Items {
		if err := trouble(&list.Items[i], image); err != nil {
			found(err)
			return
		}
	}
	o.ResourceVersion, o.Watch = list.ResourceVersion, true
	w, err := s.d.api.core.Get().
		Namespace(s.d.api.namespace).
		Resource("events").
		VersionedParams(&o, s.d.api.params).
		Watch(ctx)
	if err != nil {
		return
	}
	defer w.Stop()
	for change := range w.ResultChan() {
		e, ok := change.Object.(*corev1.Event)
		if !ok {
			return
		}
		if err := trouble(e, image); err != nil {
			found(err)
			return
		}
	}
}

// startError is an error that an event reported.
type startError struct{ error }

func (e startError) Unwrap() error { return e.error }

// trouble returns why a pod will not start according to an event, or nil.
func trouble(e *corev1.Event, image string) error {
	switch text := e.Message; {
	case e.Reason == "FailedCreatePodSandBox" && refusesUserNamespace(text):
		return startError{noUserNamespace(text)}
	case e.Reason == "ErrImageNeverPull", e.Reason == "Failed" && strings.HasPrefix(text, "Failed to pull image"):
		return startError{fmt.Errorf("image cannot be pulled: %s: %s: %w", e.Reason, text, errdefs.ErrNotFound)}
	case e.Reason == "InspectFailed" && strings.HasPrefix(text, "Failed to apply default image tag"):
		return startError{fmt.Errorf("image %q: invalid reference: %s: %w", image, text, errdefs.ErrFailedPrecondition)}
	}
	return nil
}

// reported returns the error of an event, if that is why ctx ended.
func reported(ctx context.Context) error {
	var e startError
	if errors.As(context.Cause(ctx), &e) {
		return e.error
	}
	return nil
}
