package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
)

// Times of the election. Another process becomes active after the Lease's time since the holder's
// last renewal, and within two retries of up to 2 s each. A holder that cannot renew reports its
// loss before: at most requestTime, retryTime and renewTime after it has sent that renewal.
const (
	// leaseTime is the default of ElectionOptions.LeaseTime, and the shortest one.
	leaseTime = 10 * time.Second
	retryTime = time.Second
	// requestTime bounds a request of the election.
	requestTime = 2 * time.Second
	// releaseTime bounds the release of the Lease at the end.
	releaseTime = 3 * time.Second
)

// renewTime returns how long a holder tries to renew a Lease.
func renewTime(lease time.Duration) time.Duration { return (lease * 2 / 3).Truncate(time.Second) }

// ElectionOptions say which Lease a Candidate competes for.
type ElectionOptions struct {
	// Kubeconfig, Context and Namespace are those of the driver's Options.
	Kubeconfig, Context, Namespace string
	// Owner is the owner of the sandboxes. It names the Lease.
	Owner string
	// Place identifies the exclusive lock that the active process holds in addition, such as that
	// of a directory on this machine. It differs between machines. Empty: there is none.
	Place string
	// LeaseTime is how long a Lease lasts without a renewal: whole seconds, at least 10. Zero means
	// 10 s. A holder that cannot renew for two thirds of it loses the Lease.
	LeaseTime time.Duration
	// Lost is called at most once, when this process has lost the Lease before Close. It must end the
	// process: another one may be active from now on. The error is of class Unavailable.
	Lost func(error)
	// Log may be nil.
	Log *slog.Logger
}

// Candidate competes for the Lease of an owner. Its methods may be called concurrently, but Close
// only after Acquire has returned. It has a goroutine from then to Close.
type Candidate struct {
	opts   ElectionOptions
	lock   *leaseLock
	cancel context.CancelFunc
	run    sync.WaitGroup
	once   sync.Once // for the call of Lost, and for Close

	checks  sync.Mutex // held during a check of the Lease by Superseded
	checked time.Time  // the end of the last one; guarded by checks
}

// NewCandidate connects to the cluster and checks the permissions that are needed. Its errors are
// those of New.
func NewCandidate(ctx context.Context, o ElectionOptions) (*Candidate, error) {
	config, err := loadConfig(o.Kubeconfig, o.Context)
	if err != nil {
		return nil, err
	}
	return newCandidate(ctx, config, o)
}

func newCandidate(ctx context.Context, config *rest.Config, o ElectionOptions) (*Candidate, error) {
	quietLibrary()
	o.LeaseTime = cmp.Or(o.LeaseTime, leaseTime)
	if o.LeaseTime < leaseTime {
		return nil, fmt.Errorf("kubernetes: a Lease of %s: it must be at least %s: %w", o.LeaseTime, leaseTime, errdefs.ErrInvalidArgument)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	// With HTTP/2, requests would go on over a connection that silently broke for up to 45 s. With
	// HTTP/1.1, a request that times out closes its connection.
	config = rest.CopyConfig(config)
	config.NextProtos = []string{"http/1.1"}
	api, err := newAPI(config, o.Namespace)
	if err != nil {
		return nil, err
	}
	askCtx, cancel := context.WithTimeoutCause(ctx, askTime, errSlow)
	defer cancel()
	if err := api.checkPermissions(askCtx, leasePermissions()); err != nil {
		return nil, err
	}
	host, _ := os.Hostname() // only for people
	c := &Candidate{opts: o, cancel: func() {}}
	c.lock = &leaseLock{
		api: api, name: "orchestrator-" + o.Owner, identity: host + "_" + uuid.NewString(), place: o.Place,
	}
	return c, nil
}

// leasePermissions are what a candidate needs in its namespace.
func leasePermissions() []authorizationv1.ResourceAttributes {
	verbs := []string{"get", "create", "update"}
	out := make([]authorizationv1.ResourceAttributes, 0, len(verbs))
	for _, verb := range verbs {
		out = append(out, authorizationv1.ResourceAttributes{
			Verb: verb, Group: coordinationv1.GroupName, Resource: "leases",
		})
	}
	return out
}

// Lease returns namespace and name of the Lease.
func (c *Candidate) Lease() string { return c.lock.String() }

// Acquire waits until this process holds the Lease, and calls waiting with the identity of each
// other holder that it sees. The epoch is larger than that of every earlier holder. Acquire must be
// called once. After an error the candidate must be closed.
func (c *Candidate) Acquire(ctx context.Context, waiting func(holder string)) (epoch int64, err error) {
	c.lock.duration = c.opts.LeaseTime
	var sent time.Time
	for last := ""; ; {
		sent = time.Now()
		holder, err := c.lock.acquire(ctx)
		if holder == c.lock.identity && err == nil {
			break
		}
		if err != nil {
			c.opts.Log.Debug("failed to acquire the Lease; retrying", "lease", c.Lease(), "error", err)
		}
		if err == nil && holder != last {
			waiting(holder)
			last = holder
		}
		select {
		case <-time.After(retryTime + rand.N(retryTime)): // candidates must not write at the same time
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	// The renewals outlive ctx: Close ends them after everything that the Lease guards.
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	c.run.Go(func() { c.renewUntilLost(run, sent) })
	return c.lock.currentEpoch(), nil
}

// renewUntilLost renews the Lease every second until ctx is done or the Lease is lost. sent is when
// the request was sent that made this process the holder.
func (c *Candidate) renewUntilLost(ctx context.Context, sent time.Time) {
	var end time.Time // when the Lease is lost unless a renewal succeeds; zero after one that did
	for {
		wait := retryTime
		if !end.IsZero() {
			wait = min(wait, time.Until(end))
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		began := time.Now()
		if end.IsZero() {
			end = c.lossTime(sent, began)
		}
		err := c.renewBefore(ctx, end)
		switch {
		case err == nil:
			sent, end = began, time.Time{}
		case ctx.Err() != nil:
			return
		case errors.Is(err, errSuperseded):
			c.lose(err)
			return
		case !time.Now().Before(end):
			c.lose(fmt.Errorf("it could not be renewed for %s: %w", time.Since(sent).Round(time.Second), err))
			return
		}
	}
}

// lossTime returns until when renewals are tried, of which the first begins now. The last one that
// succeeded was sent before. After a pause of this process there is one try: a renewal succeeds
// only if no other process has become the holder meanwhile.
func (c *Candidate) lossTime(sent, now time.Time) time.Time {
	renew := renewTime(c.opts.LeaseTime)
	end := sent.Add(renew + requestTime + retryTime)
	if tries := now.Add(renew); tries.Before(end) {
		return tries
	}
	if !now.Before(end) {
		return now.Add(requestTime)
	}
	return end
}

// renewBefore renews the Lease. It returns at end at the latest, or soon after the end of ctx, even
// if the request does not: a program that gets credentials and a token file may hang.
func (c *Candidate) renewBefore(ctx context.Context, end time.Time) error {
	try, cancel := context.WithDeadlineCause(ctx, end, errSlow)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- c.lock.keep(try) }()
	select {
	case err := <-result:
		return err
	case <-try.Done():
	}
	select {
	case err := <-result: // it has ended with its context
		return err
	case <-time.After(retryTime / 10):
		return context.Cause(try)
	}
}

// lose reports that the Lease was lost. Only the first reason counts. Its class does not.
func (c *Candidate) lose(why error) {
	c.once.Do(func() {
		c.opts.Lost(fmt.Errorf("kubernetes: Lease %s was lost: %v: %w", c.Lease(), why, errdefs.ErrUnavailable))
	})
}

// Superseded reads the Lease after a pod or a guest has refused this process for a newer one. It
// calls Lost if the Lease does not name this process and its epoch. Otherwise the refusal says
// nothing about other sandboxes: guests are not trusted. If the Lease cannot be read, the renewals
// decide. Superseded reads at most once per second, also when reading fails.
func (c *Candidate) Superseded(why error) {
	c.checks.Lock()
	defer c.checks.Unlock()
	if time.Since(c.checked) < retryTime {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), requestTime, errSlow)
	defer cancel()
	err := c.lock.check(ctx)
	c.checked = time.Now()
	switch {
	case errors.Is(err, errSuperseded):
		c.lose(fmt.Errorf("%w: %w", err, why))
		return
	case err != nil:
		c.opts.Log.Warn("a sandbox refuses this process, and the Lease cannot be read", "lease", c.Lease(), "error", err)
		return
	}
	c.opts.Log.Warn("a sandbox refuses this process, which holds the Lease", "lease", c.Lease(), "error", why)
}

// Locked records in the Lease that this process holds the lock of Place, with the next renewal.
func (c *Candidate) Locked() { c.lock.setLocked() }

// Inherit releases the Lease if its holder has recorded that it holds the lock of Place. The caller
// holds this lock, so that the holder must have ended. It saves the wait for the Lease's end.
func (c *Candidate) Inherit(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, errSlow)
	defer cancel()
	switch holder, err := c.lock.inherit(ctx); {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // the Lease is free, or its holder has just changed
	case err != nil:
		return c.lock.api.failed(ctx, "release Lease "+c.Lease(), err)
	case holder != "":
		c.opts.Log.Info("released the Lease of a process that has ended", "lease", c.Lease(), "holder", holder)
	}
	return nil
}

// Close releases the Lease if this process holds it. Everything that the Lease guards must have
// ended. If the release fails, the Lease expires.
func (c *Candidate) Close() error {
	c.once.Do(func() {}) // Lost is not called any more
	c.cancel()
	c.run.Wait()
	if !c.lock.mayHold() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTime)
	defer cancel()
	if err := c.lock.release(ctx); err != nil {
		c.opts.Log.Warn("failed to release the Lease; it will expire", "lease", c.Lease(), "error", err)
	}
	return nil
}
