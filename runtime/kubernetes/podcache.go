package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// The pauses before a watch that broke off is started again.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// podCache follows the driver's pods with one watch.
type podCache struct {
	api    *api
	log    *slog.Logger
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu sync.Mutex
	// entries are by pod name; guarded by mu. So is lists, which counts the lists that were begun.
	entries map[string]*podEntry
	lists   int
}

// podEntry is what is known of one pod. It stays while somebody waits for the pod, even if there is
// none.
type podEntry struct {
	pod     *corev1.Pod   // nil: there is none
	final   *corev1.Pod   // as the deletion reported it, if there is none
	since   int           // podCache.lists when the pod was added
	changed chan struct{} // closed by the next change
	waiters int
}

// openPodCache lists the pods and then follows them until close.
func openPodCache(ctx context.Context, a *api, log *slog.Logger) (*podCache, error) {
	c := &podCache{api: a, log: log, entries: map[string]*podEntry{}}
	version, err := c.list(ctx)
	if err != nil {
		return nil, a.failed(ctx, "list pods", err)
	}
	run, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	c.cancel = cancel
	c.wg.Go(func() { c.run(run, version) })
	return c, nil
}

var errDriverClosed = errors.New("the driver was closed")

func (c *podCache) close() {
	c.cancel(errDriverClosed)
	c.wg.Wait()
}

func ours() metav1.ListOptions { return metav1.ListOptions{LabelSelector: labelID} }

func ofID(id string) metav1.ListOptions { return metav1.ListOptions{LabelSelector: labelID + "=" + id} }

// entryName returns the name under which a pod is cached: that of the Job or SandboxClaim that has
// created it, or its own.
func entryName(p *corev1.Pod) string {
	if madeByOther(p) {
		return podName(p.Labels[labelID])
	}
	return p.Name
}

// list replaces the content and returns the version to watch from.
func (c *podCache) list(ctx context.Context) (string, error) {
	c.mu.Lock()
	c.lists++
	began := c.lists
	c.mu.Unlock()
	got, err := c.api.list(ctx, ours())
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := map[string]bool{}
	for i := range got.Items {
		seen[entryName(&got.Items[i])] = true
		c.update(&got.Items[i], false)
	}
	for name, e := range c.entries {
		// A pod that was created while the list was made may be missing from it.
		if !seen[name] && e.pod != nil && e.since < began {
			c.set(name, nil)
		}
	}
	return got.ResourceVersion, nil
}

// set records the state of a pod. The caller holds mu.
func (c *podCache) set(name string, pod *corev1.Pod) {
	e := c.entries[name]
	if e == nil {
		if pod == nil {
			return
		}
		e = &podEntry{changed: make(chan struct{})}
		c.entries[name] = e
	}
	if e.pod == nil || pod == nil || e.pod.UID != pod.UID {
		e.since = c.lists
	}
	if pod != nil {
		e.final = nil
	}
	e.pod = pod
	close(e.changed)
	e.changed = make(chan struct{})
	c.drop(name, e)
}

// update records a state that the server has sent. Of several pods of an object, the newest counts.
// The caller holds mu.
func (c *podCache) update(pod *corev1.Pod, deleted bool) {
	name := entryName(pod)
	if e := c.entries[name]; e != nil && e.pod != nil && e.pod.UID != pod.UID &&
		(deleted || pod.CreationTimestamp.Before(&e.pod.CreationTimestamp)) {
		return
	}
	if deleted {
		if e := c.entries[name]; e != nil {
			e.final = pod
		}
		pod = nil
	}
	c.set(name, pod)
}

// drop removes an entry that nobody needs. The caller holds mu.
func (c *podCache) drop(name string, e *podEntry) {
	if e.pod == nil && e.waiters == 0 {
		delete(c.entries, name)
	}
}

// add records a pod that this process has just created, unless the watch was faster.
func (c *podCache) add(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[entryName(pod)]; e == nil || e.pod == nil {
		c.set(entryName(pod), pod)
	}
}

// get returns the last known state of a pod, or nil.
func (c *podCache) get(name string) *corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[name]; e != nil {
		return e.pod
	}
	return nil
}

// run watches until ctx ends. It lists again whenever a watch ends: the server ends each after some
// minutes, and the version to continue from may be too old.
func (c *podCache) run(ctx context.Context, version string) {
	for pause := firstRetry; ctx.Err() == nil; {
		err := c.follow(ctx, version)
		for err != nil && ctx.Err() == nil {
			c.log.Debug("watch of pods ended", "error", err)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
			pause = min(2*pause, lastRetry)
			if version, err = c.list(ctx); err == nil {
				pause = firstRetry
			}
		}
	}
}

// follow applies changes until the watch ends, and returns why it did.
func (c *podCache) follow(ctx context.Context, version string) error {
	o := ours()
	o.ResourceVersion = version
	w, err := c.api.watch(ctx, o)
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case event, ok := <-w.ResultChan():
			if !ok {
				return errors.New("the server ended it")
			}
			pod, isPod := event.Object.(*corev1.Pod)
			if !isPod {
				return fmt.Errorf("the server sent %s: %v", event.Type, event.Object)
			}
			c.mu.Lock()
			c.update(pod, event.Type == watch.Deleted)
			c.mu.Unlock()
		}
	}
}

// wait calls done with each state of the pod that has this UID, or of any pod if it is "", from the
// present one, until done returns true. The state is nil when there is no such pod any more. States
// may be left out, but not the last one of a pod with this UID, which has the reason of its end. It
// returns an error only when ctx ends.
func (c *podCache) wait(ctx context.Context, name string, uid types.UID, done func(*corev1.Pod) bool) error {
	c.mu.Lock()
	e := c.entries[name]
	if e == nil {
		e = &podEntry{changed: make(chan struct{})}
		c.entries[name] = e
	}
	e.waiters++
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		e.waiters--
		c.drop(name, e)
	}()
	for {
		pod, final, changed := e.pod, e.final, e.changed
		c.mu.Unlock()
		if pod == nil && final != nil && final.UID == uid && done(final) {
			return nil
		}
		if pod != nil && uid != "" && pod.UID != uid {
			pod = nil
		}
		if done(pod) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errdefs.ErrUnavailable, context.Cause(ctx))
		}
		c.mu.Lock()
	}
}
