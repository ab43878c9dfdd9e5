package audit

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
)

const (
	// MaxOwned limits the values of one caller at a time, in bytes. Each distinct value also counts
	// ownedCost bytes.
	MaxOwned  = 2 << 20
	ownedCost = 256
)

// owners holds the values of callers. One caller's values never affect another caller's records.
type owners struct {
	mu   sync.RWMutex
	live map[string]*owner // by caller
}

// owner holds the values of one caller.
type owner struct {
	bytes int
	sets  map[[sha256.Size]byte]*ownedSet // by hash of the content
	ready []*values                       // values of all sets; replaced, never modified
}

// ownedSet is a reference-counted set of values.
type ownedSet struct {
	once   sync.Once
	values *values
	refs   int
	bytes  int
}

// Own hides values in records of the caller, in all their encodings, until release is called. It
// ignores surrounding white space and values under 6 bytes. Equal sets are stored once. If the
// values exceed MaxOwned, Own returns an error of class ResourceExhausted.
func (r *Redactor) Own(ctx context.Context, caller string, list []string) (release func(), err error) {
	var known []string
	for _, value := range list {
		if value = strings.TrimSpace(value); len(value) >= minValue {
			known = append(known, value)
		}
	}
	if len(known) == 0 {
		return func() {}, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	slices.Sort(known)
	known = slices.Compact(known)
	id := sha256.Sum256([]byte(strings.Join(known, "\x00")))
	s, err := r.own.acquire(caller, id, known)
	if err != nil {
		return nil, err
	}
	s.once.Do(func() {
		r.own.publish(caller, s, compileValues(known))
	})
	return sync.OnceFunc(func() { r.own.release(caller, id) }), nil
}

// acquire adds a reference to the set id.
func (o *owners) acquire(caller string, id [sha256.Size]byte, list []string) (*ownedSet, error) {
	bytes := 0
	for _, value := range list {
		bytes += len(value) + ownedCost
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.live[caller]
	if c == nil {
		c = &owner{sets: map[[sha256.Size]byte]*ownedSet{}}
	}
	s := c.sets[id]
	if s == nil {
		if c.bytes+bytes > MaxOwned {
			return nil, fmt.Errorf("secret values of running calls and sandboxes exceed %d bytes: %w",
				MaxOwned, errdefs.ErrResourceExhausted)
		}
		s = &ownedSet{bytes: bytes}
		c.sets[id] = s
		c.bytes += bytes
	}
	s.refs++
	if o.live == nil {
		o.live = map[string]*owner{}
	}
	o.live[caller] = c
	return s, nil
}

// publish makes the values of an acquired set visible.
func (o *owners) publish(caller string, s *ownedSet, v *values) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.values = v
	o.live[caller].refreshReady()
}

func (o *owners) release(caller string, id [sha256.Size]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.live[caller]
	s := c.sets[id]
	if s.refs--; s.refs > 0 {
		return
	}
	delete(c.sets, id)
	c.bytes -= s.bytes
	c.refreshReady()
	if len(c.sets) == 0 {
		delete(o.live, caller)
	}
}

// refreshReady rebuilds ready. The caller holds the lock.
func (c *owner) refreshReady() {
	c.ready = make([]*values, 0, len(c.sets))
	for _, s := range c.sets {
		if s.values != nil {
			c.ready = append(c.ready, s.values)
		}
	}
}

// valuesOf returns the values of a caller.
func (o *owners) valuesOf(caller string) []*values {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if c := o.live[caller]; c != nil {
		return c.ready
	}
	return nil
}
