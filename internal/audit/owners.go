package audit

import (
	"cmp"
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
	// maxIndexes bounds the indexes of one caller, because each takes its time to search a text.
	maxIndexes = 16
)

// owners holds the values of callers. One caller's values never affect another caller's records.
type owners struct {
	mu   sync.RWMutex
	live map[string]*owner // by caller
}

// owner holds the values of one caller.
type owner struct {
	bytes   int
	sets    map[[sha256.Size]byte]*ownedSet // by hash of the content
	indexes []*ownedIndex                   // at most maxIndexes
	ready   []*values                       // values of all indexes; replaced, never modified
}

// ownedIndex holds the values of one or more sets.
type ownedIndex struct {
	change sync.Mutex // held while values is compiled; taken before the lock of owners
	sets   map[*ownedSet]struct{}
	bytes  int
	values *values // nil until it is first compiled
}

// ownedSet is a reference-counted set of values.
type ownedSet struct {
	once  sync.Once
	in    *ownedIndex
	list  []string
	refs  int
	bytes int
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
	c, s, err := r.own.acquire(caller, id, known)
	if err != nil {
		return nil, err
	}
	s.once.Do(func() { r.own.compile(c, s.in) })
	return sync.OnceFunc(func() { r.own.release(caller, id) }), nil
}

// acquire adds a reference to the set id.
func (o *owners) acquire(caller string, id [sha256.Size]byte, list []string) (*owner, *ownedSet, error) {
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
			return nil, nil, fmt.Errorf("secret values of running calls and sandboxes exceed %d bytes: %w",
				MaxOwned, errdefs.ErrResourceExhausted)
		}
		s = &ownedSet{in: c.indexForNewSet(), list: list, bytes: bytes}
		s.in.sets[s] = struct{}{}
		s.in.bytes += bytes
		c.sets[id] = s
		c.bytes += bytes
	}
	s.refs++
	if o.live == nil {
		o.live = map[string]*owner{}
	}
	o.live[caller] = c
	return c, s, nil
}

// indexForNewSet returns a new index, or the smallest one if there are enough. The caller holds the
// lock.
func (c *owner) indexForNewSet() *ownedIndex {
	if len(c.indexes) < maxIndexes {
		x := &ownedIndex{sets: map[*ownedSet]struct{}{}}
		c.indexes = append(c.indexes, x)
		return x
	}
	return slices.MinFunc(c.indexes, func(a, b *ownedIndex) int { return cmp.Compare(a.bytes, b.bytes) })
}

// compile makes the present sets of an index visible, and no others.
func (o *owners) compile(c *owner, x *ownedIndex) {
	x.change.Lock()
	defer x.change.Unlock()
	o.mu.RLock()
	var list []string
	for s := range x.sets {
		list = append(list, s.list...)
	}
	o.mu.RUnlock()
	v := compileValues(list)
	o.mu.Lock()
	defer o.mu.Unlock()
	x.values = v
	c.refreshReady()
}

func (o *owners) release(caller string, id [sha256.Size]byte) {
	if c, x := o.drop(caller, id); x != nil {
		o.compile(c, x)
	}
}

// drop removes a reference to a set. It returns an index that must be compiled again, or nil.
func (o *owners) drop(caller string, id [sha256.Size]byte) (*owner, *ownedIndex) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.live[caller]
	s := c.sets[id]
	if s.refs--; s.refs > 0 {
		return nil, nil
	}
	x := s.in
	delete(c.sets, id)
	delete(x.sets, s)
	c.bytes -= s.bytes
	x.bytes -= s.bytes
	if len(c.sets) == 0 {
		delete(o.live, caller)
	}
	if len(x.sets) > 0 {
		return c, x
	}
	c.indexes = slices.DeleteFunc(c.indexes, func(other *ownedIndex) bool { return other == x })
	c.refreshReady()
	return nil, nil
}

// refreshReady rebuilds ready. The caller holds the lock.
func (c *owner) refreshReady() {
	c.ready = make([]*values, 0, len(c.indexes))
	for _, x := range c.indexes {
		if x.values != nil {
			c.ready = append(c.ready, x.values)
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
