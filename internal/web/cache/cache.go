// Package cache caches web answers in memory for up to MaxAge, so that a repeated web.fetch needs
// neither a sandbox nor a connection.
//
// The cache is bounded in entries and bytes. When full, it evicts the oldest entry of the owner
// that uses the most. The key decides who shares an entry; [Lifetime] decides whether an answer may
// be cached, and for how long. Expired entries are dropped by later calls; the package starts no
// goroutine.
package cache

import (
	"container/list"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// MaxAge is the maximum age of a cached answer.
const MaxAge = 15 * time.Minute

// Default bounds for New.
const (
	DefaultEntries = 500
	DefaultBytes   = 64 << 20
)

// overhead is the size of an entry without its texts, in bytes.
const overhead = 512

// Cache is an in-memory cache. It is safe for concurrent use.
type Cache struct {
	entries int
	bytes   int64

	mu     sync.Mutex
	byKey  map[string]*list.Element
	age    *list.List // of *entry, oldest first
	held   int64
	shares map[string]*ownerEntries // by owner; only owners with entries
}

// ownerEntries holds the entries of one owner.
type ownerEntries struct {
	age  *list.List // of *list.Element of Cache.age, oldest first
	held int64
}

type entry struct {
	owner, key string
	answer     web.Answer
	size       int64
	at         time.Time
	life       time.Duration
	own        *list.Element // element in share.age
}

// New returns a cache that holds up to the given number of entries and bytes. If either is zero, it
// stores nothing.
func New(entries int, bytes int64) *Cache {
	return &Cache{entries: entries, bytes: bytes, byKey: map[string]*list.Element{}, age: list.New(),
		shares: map[string]*ownerEntries{}}
}

// Get returns the answer for key and its age. ok is false if the answer is missing or expired.
// Callers must not modify the answer.
func (c *Cache) Get(key string) (a web.Answer, age time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.sweep(now)
	el, ok := c.byKey[key]
	if !ok {
		return web.Answer{}, 0, false
	}
	e := el.Value.(*entry)
	if age = e.age(now); age >= e.life {
		c.drop(el)
		return web.Answer{}, 0, false
	}
	return e.answer, age, true
}

// Put replaces the entry for key with a, for min(life, MaxAge), and charges it to owner. An answer
// over an eighth of the byte limit is dropped, and so is the old entry.
func (c *Cache) Put(owner, key string, a web.Answer, life time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.sweep(now)
	if el, ok := c.byKey[key]; ok {
		c.drop(el)
	}
	e := &entry{owner: owner, key: key, answer: a, size: sizeOf(owner, key, a), at: now, life: min(life, MaxAge)}
	if e.life <= 0 || c.entries < 1 || e.size > c.bytes/8 {
		return
	}
	c.add(e)
	for c.age.Len() > c.entries {
		c.drop(c.oldest(func(s *ownerEntries) int64 { return int64(s.age.Len()) }))
	}
	for c.held > c.bytes {
		c.drop(c.oldest(func(s *ownerEntries) int64 { return s.held }))
	}
}

// add inserts an entry as the newest.
func (c *Cache) add(e *entry) {
	s := c.shares[e.owner]
	if s == nil {
		s = &ownerEntries{age: list.New()}
		c.shares[e.owner] = s
	}
	el := c.age.PushBack(e)
	e.own = s.age.PushBack(el)
	c.byKey[e.key] = el
	c.held += e.size
	s.held += e.size
}

// oldest returns the oldest entry of the owner with the most. Among equal owners, the oldest entry
// wins.
func (c *Cache) oldest(has func(*ownerEntries) int64) *list.Element {
	var most *ownerEntries
	var front *list.Element
	for _, s := range c.shares {
		el := s.age.Front().Value.(*list.Element)
		if most == nil || has(s) > has(most) || has(s) == has(most) &&
			el.Value.(*entry).at.Before(front.Value.(*entry).at) {
			most, front = s, el
		}
	}
	return front
}

// sweep drops entries older than MaxAge.
func (c *Cache) sweep(now time.Time) {
	for el := c.age.Front(); el != nil && el.Value.(*entry).age(now) >= MaxAge; el = c.age.Front() {
		c.drop(el)
	}
}

func (c *Cache) drop(el *list.Element) {
	e := el.Value.(*entry)
	s := c.shares[e.owner]
	c.age.Remove(el)
	s.age.Remove(e.own)
	delete(c.byKey, e.key)
	c.held -= e.size
	if s.held -= e.size; s.age.Len() == 0 {
		delete(c.shares, e.owner)
	}
}

// age returns the age of an entry. It also uses the wall clock, because the monotonic clock stops
// while the host is suspended.
func (e *entry) age(now time.Time) time.Duration {
	return max(now.Sub(e.at), now.Round(0).Sub(e.at.Round(0)))
}

func sizeOf(owner, key string, a web.Answer) int64 {
	n := overhead + len(owner) + 2*len(key) + len(a.URL) + len(a.RedirectURL) + len(a.MediaType) + len(a.Charset) +
		len(a.Title) + len(a.Byline) + len(a.Text) + len(a.Body)
	for _, h := range a.Header {
		n += overhead/8 + len(h[0]) + len(h[1])
	}
	return int64(n)
}
