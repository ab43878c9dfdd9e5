package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
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

// leaseLock is the Lease of an election. The library's own lock needs its full set of clients.
type leaseLock struct {
	api                   *api
	name, identity, place string

	mu         sync.Mutex
	lease      *coordinationv1.Lease // as last seen; guarded by mu, as is all below
	epoch      int64                 // of this process; 0: it has not held the Lease
	locked     bool
	superseded func(error) // called when another process holds the Lease after this one
}

// Get implements resourcelock.Interface.
func (l *leaseLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTime, errSlow)
	defer cancel()
	lease, err := l.api.getLease(ctx, l.name)
	if err != nil {
		return nil, nil, err
	}
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	raw, err := json.Marshal(record)
	if err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease = lease
	if l.epoch != 0 && record.HolderIdentity != l.identity {
		l.superseded(fmt.Errorf("process %q holds it", record.HolderIdentity))
	}
	return record, raw, nil
}

// Create implements resourcelock.Interface. The first epoch is the time, so that it is larger than
// those of a Lease that somebody has deleted.
func (l *leaseLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	epoch := l.currentEpoch()
	if epoch == 0 {
		epoch = time.Now().Unix()
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: l.name, Namespace: l.api.namespace},
		Spec:       resourcelock.LeaderElectionRecordToLeaseSpec(&record),
	}
	return l.write(ctx, lease, epoch, l.api.createLease)
}

// Update implements resourcelock.Interface. A process that becomes the holder gets a new epoch. It
// is at least the time, so that it is larger than those before a Lease was restored from a copy.
func (l *leaseLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	if l.lease == nil {
		l.mu.Unlock()
		return errors.New("the Lease was not read yet")
	}
	lease, epoch := l.lease.DeepCopy(), l.epoch
	l.mu.Unlock()
	switch mine := holderOf(lease) == l.identity; {
	case !mine:
		epoch = max(epochOf(lease), epoch, time.Now().Unix()-1) + 1
	case epoch == 0: // the answer to the request that made this process the holder was lost
		epoch = epochOf(lease)
	}
	lease.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
	return l.write(ctx, lease, epoch, l.api.updateLease)
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
		return fmt.Errorf("process %q holds it", holder)
	}
	if got, want := epochOf(lease), l.currentEpoch(); got != want {
		return fmt.Errorf("its epoch is %d, and that of this process %d", got, want)
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

func (l *leaseLock) currentEpoch() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch
}

// RecordEvent implements resourcelock.Interface. It does nothing.
func (l *leaseLock) RecordEvent(string) {}

// Identity implements resourcelock.Interface.
func (l *leaseLock) Identity() string { return l.identity }

// Describe implements resourcelock.Interface.
func (l *leaseLock) Describe() string { return l.api.namespace + "/" + l.name }

func holderOf(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// epochOf returns the epoch in an object's annotations, or 0.
func epochOf(object metav1.Object) int64 {
	n, err := strconv.ParseInt(object.GetAnnotations()[annotationEpoch], 10, 64)
	if err != nil || n < 0 || n > maxEpoch {
		return 0 // written by hand, or by a process without an election
	}
	return n
}
