package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// annotationEpoch is on Leases and pods. On a Lease it is the holder's epoch, on a pod that of the
// process that manages it. annotationLocked is on Leases: the holder holds the lock of this place.
const (
	annotationEpoch  = "orchestrator.epoch"
	annotationLocked = "orchestrator.locked"
)

// maxEpoch is above every epoch: they begin at the time in seconds, and grow by one per holder.
// Larger numbers were not written by a holder, and would overflow at the end.
const maxEpoch = 1 << 40

// leaseLock is the Lease of an election as this process sees and writes it.
type leaseLock struct {
	api                   *api
	name, identity, place string
	duration              time.Duration

	// Used by one goroutine: the specification that was last read, and when this process saw it first.
	observed   coordinationv1.LeaseSpec
	observedAt time.Time

	mu     sync.Mutex
	lease  *coordinationv1.Lease // as last seen; guarded by mu, as is all below
	epoch  int64                 // of this process; 0: it has not held the Lease
	locked bool
	asked  bool // a request was sent that may have made this process the holder
}

// acquire makes this process the holder if the Lease is free or has expired, and returns the
// holder. A Lease expires when its specification has not changed for its duration by the clock of
// this process, because the holder's clock may differ.
func (l *leaseLock) acquire(ctx context.Context) (holder string, err error) {
	lease, err := l.read(ctx)
	if apierrors.IsNotFound(err) {
		return l.identity, l.create(ctx)
	}
	if err != nil {
		return "", err
	}
	if !equality.Semantic.DeepEqual(l.observed, lease.Spec) {
		l.observed, l.observedAt = lease.Spec, time.Now()
	}
	holder = holderOf(lease)
	if holder != "" && holder != l.identity && time.Since(l.observedAt) < durationOf(lease) {
		return holder, nil
	}
	return l.identity, l.renew(ctx)
}

// create creates the Lease. The first epoch is the time, so that it is larger than those of a Lease
// that somebody has deleted.
func (l *leaseLock) create(ctx context.Context) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: l.name, Namespace: l.api.namespace}}
	l.hold(lease)
	return l.write(ctx, lease, cmp.Or(l.currentEpoch(), time.Now().Unix()), l.api.createLease)
}

// renew writes the Lease that was last seen with this process as the holder. It fails with a
// conflict if the Lease has changed since. A process that becomes the holder gets a new epoch. It
// is at least the time, so that it is larger than those before a Lease was restored from a copy.
func (l *leaseLock) renew(ctx context.Context) error {
	l.mu.Lock()
	lease, epoch := l.lease.DeepCopy(), l.epoch
	l.mu.Unlock()
	switch mine := holderOf(lease) == l.identity; {
	case !mine:
		epoch = max(epochOf(lease), epoch, time.Now().Unix()-1) + 1
	case epoch == 0: // the answer to the request that made this process the holder was lost
		epoch = epochOf(lease)
	}
	l.hold(lease)
	return l.write(ctx, lease, epoch, l.api.updateLease)
}

// hold makes this process the holder of a Lease from now on, in memory.
func (l *leaseLock) hold(lease *coordinationv1.Lease) {
	now, spec := metav1.NowMicro(), &lease.Spec
	if holderOf(lease) != l.identity {
		transitions := int32(0)
		if spec.LeaseTransitions != nil {
			transitions = *spec.LeaseTransitions + 1
		}
		spec.HolderIdentity, spec.AcquireTime, spec.LeaseTransitions = &l.identity, &now, &transitions
	}
	seconds := int32(l.duration / time.Second)
	spec.RenewTime, spec.LeaseDurationSeconds = &now, &seconds
}

// errSuperseded is the cause when this process has held the Lease and does not hold it any more.
var errSuperseded = errors.New("this process does not hold it any more")

// keep renews the Lease that this process has acquired. A Lease that was deleted is created again.
func (l *leaseLock) keep(ctx context.Context) error {
	err := l.renew(ctx)
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return err
	}
	switch lease, err := l.read(ctx); {
	case apierrors.IsNotFound(err):
		return l.create(ctx)
	case err != nil:
		return err
	case holderOf(lease) != l.identity:
		return fmt.Errorf("process %q holds it: %w", holderOf(lease), errSuperseded)
	}
	return l.renew(ctx)
}

// read reads the Lease.
func (l *leaseLock) read(ctx context.Context) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTime, errSlow)
	defer cancel()
	lease, err := l.api.getLease(ctx, l.name)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease = lease
	return lease, nil
}

// write sends a Lease with the annotations of this process.
func (l *leaseLock) write(
	ctx context.Context, lease *coordinationv1.Lease, epoch int64,
	send func(context.Context, *coordinationv1.Lease) (*coordinationv1.Lease, error),
) error {
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	lease.Annotations[annotationEpoch] = strconv.FormatInt(epoch, 10)
	delete(lease.Annotations, annotationLocked)
	l.mu.Lock()
	l.asked = true
	if l.locked && l.place != "" && holderOf(lease) == l.identity {
		lease.Annotations[annotationLocked] = l.place
	}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, requestTime, errSlow)
	defer cancel()
	got, err := send(ctx, lease)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease, l.epoch = got, epoch
	return nil
}

// check returns an error unless this process holds the Lease with its epoch.
func (l *leaseLock) check(ctx context.Context) error {
	lease, err := l.api.getLease(ctx, l.name)
	if err != nil {
		return fmt.Errorf("it could not be read: %w", err)
	}
	if holder := holderOf(lease); holder != l.identity {
		return fmt.Errorf("process %q holds it: %w", holder, errSuperseded)
	}
	if got, want := epochOf(lease), l.currentEpoch(); got != want {
		return fmt.Errorf("its epoch is %d, and that of this process %d: %w", got, want, errSuperseded)
	}
	return nil
}

// inherit releases the Lease if it says that its holder has the lock of this place, and returns the
// former holder.
func (l *leaseLock) inherit(ctx context.Context) (string, error) {
	return l.releaseIf(ctx, func(lease *coordinationv1.Lease) bool {
		return l.place != "" && lease.Annotations[annotationLocked] == l.place && holderOf(lease) != l.identity
	})
}

// release releases the Lease if this process holds it.
func (l *leaseLock) release(ctx context.Context) error {
	_, err := l.releaseIf(ctx, func(lease *coordinationv1.Lease) bool { return holderOf(lease) == l.identity })
	return err
}

// releaseIf removes the holder if allowed returns true, and returns it.
func (l *leaseLock) releaseIf(ctx context.Context, allowed func(*coordinationv1.Lease) bool) (string, error) {
	lease, err := l.api.getLease(ctx, l.name)
	if err != nil {
		return "", err
	}
	holder := holderOf(lease)
	if holder == "" || !allowed(lease) {
		return "", nil
	}
	lease.Spec.HolderIdentity = nil
	delete(lease.Annotations, annotationLocked)
	_, err = l.api.updateLease(ctx, lease)
	return holder, err
}

func (l *leaseLock) setLocked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locked = true
}

// mayHold reports whether this process may be the holder, also if no answer has said so.
func (l *leaseLock) mayHold() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked
}

func (l *leaseLock) currentEpoch() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch
}

// String returns namespace and name of the Lease.
func (l *leaseLock) String() string { return l.api.namespace + "/" + l.name }

// durationOf returns how long the holder of a Lease may go without renewing it.
func durationOf(lease *coordinationv1.Lease) time.Duration {
	if lease.Spec.LeaseDurationSeconds == nil {
		return 0
	}
	return time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
}

func holderOf(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// epochOf returns the epoch in an object's annotations, or 0.
func epochOf(object metav1.Object) int64 {
	n, err := strconv.ParseInt(object.GetAnnotations()[annotationEpoch], 10, 64)
	if err != nil || n < 0 || n >= maxEpoch {
		return 0 // written by hand, or by a process without an election
	}
	return n
}
