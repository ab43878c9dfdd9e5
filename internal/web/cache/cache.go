// Package cache keeps what was fetched from the web for a quarter of an
// hour, and never longer: web.fetch's repeated calls cost no sandbox and no
// connection. It is bounded in entries and bytes. Where there is no room, the
// oldest go of whoever has most of it, so that nobody takes all of it from the
// others.
//
// Who may share an entry is the caller's business: it is in the key. What may
// be kept at all is said by [Life]. The package starts no goroutine; what is
// too old is dropped by the next use.
package cache

import (
	"container/list"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// MaxAge is how old an answer is at most.
const MaxAge = 15 * time.Minute

// Bounds that are used unless told otherwise.
const (
	DefaultEntries = 500
	DefaultBytes   = 64 << 20
)

// overhead is what an entry costs beside its texts, in bytes.
const overhead = 512

// Cache is safe for concurrent use.
type Cache struct {
	entries int
	bytes   int64

	mu     sync.Mutex
	byKey  map[string]*list.Element
	age    *list.List // of *entry, the oldest in front
	held   int64
	shares map[string]*share // by owner; those who have nothing have none
}

// share is what one owner has.
type share struct {
	age  *list.List // of *list.Element of Cache.age, the oldest in front
	held int64
}

type entry struct {
	owner, key string
	answer     web.Answer
	size       int64
	at         time.Time
	life       time.Duration
	own        *list.Element // of its share
}

// New makes a cache of at most so many entries and bytes. Zero of either keeps
// nothing.
func New(entries int, bytes int64) *Cache {
	return &Cache{entries: entries, bytes: bytes, byKey: map[string]*list.Element{}, age: list.New(), shares: map[string]*share{}}
}

// Get finds an answer that is not too old, and says how old it is. What it
// holds is shared: read it only.
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
	if age = e.old(now); age >= e.life {
		c.drop(el)
		return web.Answer{}, 0, false
	}
	return e.answer, age, true
}

// Put keeps an answer for life, at most MaxAge, in place of an earlier one. It
// counts for owner. One that is larger than an eighth of the cache is not kept:
// it would cost the others too much.
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
		c.drop(c.oldest(func(s *share) int64 { return int64(s.age.Len()) }))
	}
	for c.held > c.bytes {
		c.drop(c.oldest(func(s *share) int64 { return s.held }))
	}
}

// add makes an entry the newest.
func (c *Cache) add(e *entry) {
	s := c.shares[e.owner]
	if s == nil {
		s = &share{age: list.New()}
		c.shares[e.owner] = s
	}
	el := c.age.PushBack(e)
	e.own = s.age.PushBack(el)
	c.byKey[e.key] = el
	c.held += e.size
	s.held += e.size
}

// oldest is the oldest entry of who has most; of equals, of who has the oldest.
func (c *Cache) oldest(has func(*share) int64) *list.Element {
	var most *share
	var front *list.Element
	for _, s := range c.shares {
		el := s.age.Front().Value.(*list.Element)
		if most == nil || has(s) > has(most) || has(s) == has(most) && el.Value.(*entry).at.Before(front.Value.(*entry).at) {
			most, front = s, el
		}
	}
	return front
}

// sweep drops what nobody will get any more.
func (c *Cache) sweep(now time.Time) {
	for el := c.age.Front(); el != nil && el.Value.(*entry).old(now) >= MaxAge; el = c.age.Front() {
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

// old is an entry's age. The monotonic clock stands still while the host
// sleeps, so the other one counts too.
func (e *entry) old(now time.Time) time.Duration {
	return max(now.Sub(e.at), now.Round(0).Sub(e.at.Round(0)))
}

func sizeOf(owner, key string, a web.Answer) int64 {
	n := overhead + len(owner) + 2*len(key) + len(a.URL) + len(a.RedirectURL) + len(a.MediaType) + len(a.Charset) + len(a.Title) + len(a.Byline) + len(a.Text) + len(a.Body)
	for _, h := range a.Header {
		n += overhead/8 + len(h[0]) + len(h[1])
	}
	return int64(n)
}
