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
	// MaxOwned bounds the values that belong to one caller at a time, in bytes. Each different
	// value counts ownedCost bytes more.
	MaxOwned  = 2 << 20
	ownedCost = 256
)

// owners is the values of callers. Nothing of one caller reaches a record of another.
type owners struct {
	mu   sync.RWMutex
	live map[string]*owner // by caller
}

// owner is one caller with values.
type owner struct {
	bytes int
	sets  map[[sha256.Size]byte]*owned // by what they hold
	ready []*values                    // of sets; replaced, never changed
}

// owned is one set of values and how many hold it.
type owned struct {
	once   sync.Once
	values *values
	refs   int
	bytes  int
}

// Own hides values in records of the caller until release is called, in all their forms. White
// space around a value does not count, and values shorter than 6 bytes are not looked for. The same
// values given again are kept once. Values beyond MaxOwned are refused with an error of class
// ResourceExhausted.
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
	s, err := r.own.hold(caller, id, known)
	if err != nil {
		return nil, err
	}
	s.once.Do(func() {
		r.own.publish(caller, s, compile(known))
	})
	return sync.OnceFunc(func() { r.own.release(caller, id) }), nil
}

// hold counts one more that uses the set id.
func (o *owners) hold(caller string, id [sha256.Size]byte, list []string) (*owned, error) {
	bytes := 0
	for _, value := range list {
		bytes += len(value) + ownedCost
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.live[caller]
	if c == nil {
		c = &owner{sets: map[[sha256.Size]byte]*owned{}}
	}
	s := c.sets[id]
	if s == nil {
		if c.bytes+bytes > MaxOwned {
			return nil, fmt.Errorf("secret values of running calls and sandboxes exceed %d bytes: %w",
				MaxOwned, errdefs.ErrResourceExhausted)
		}
		s = &owned{bytes: bytes}
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

// publish makes the values of a held set known.
func (o *owners) publish(caller string, s *owned, v *values) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.values = v
	o.live[caller].collect()
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
	c.collect()
	if len(c.sets) == 0 {
		delete(o.live, caller)
	}
}

// collect renews ready; the lock is held.
func (c *owner) collect() {
	c.ready = make([]*values, 0, len(c.sets))
	for _, s := range c.sets {
		if s.values != nil {
			c.ready = append(c.ready, s.values)
		}
	}
}

// of returns the values of a caller.
func (o *owners) of(caller string) []*values {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if c := o.live[caller]; c != nil {
		return c.ready
	}
	return nil
}
