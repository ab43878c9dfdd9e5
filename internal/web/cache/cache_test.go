package cache

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

func page(text string) web.Answer { return web.Answer{Status: 200, Text: text} }

func TestEntryLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(10, 1<<20)
		c.Put("me", "a", page("one"), time.Hour)
		c.Put("me", "b", page("two"), time.Minute)
		time.Sleep(time.Minute - time.Nanosecond)
		if a, age, ok := c.Get("b"); !ok || a.Text != "two" || age != time.Minute-time.Nanosecond {
			t.Errorf("Get(b) = %v, %v, %v; want the entry", a, age, ok)
		}
		time.Sleep(time.Nanosecond)
		if _, _, ok := c.Get("b"); ok {
			t.Error("Get(b) returned an entry after its life, want none")
		}
		time.Sleep(MaxAge - time.Minute - time.Nanosecond)
		if _, _, ok := c.Get("a"); !ok {
			t.Error("Get(a) returned no entry before MaxAge, want one")
		}
		time.Sleep(time.Nanosecond)
		if _, _, ok := c.Get("a"); ok || c.held != 0 || c.age.Len() != 0 || len(c.shares) != 0 {
			t.Errorf("after MaxAge: entry %v, %d bytes, %d entries, %d owners; want none", ok, c.held, c.age.Len(),
				len(c.shares))
		}
	})
}

func TestCacheIsBounded(t *testing.T) {
	c := New(4, 1<<20)
	for i := range 10 {
		c.Put("me", fmt.Sprint(i), page("x"), MaxAge)
	}
	if _, _, ok := c.Get("5"); ok || c.age.Len() != 4 {
		t.Errorf("%d entries, want 4 without the oldest", c.age.Len())
	}
	c.Put("me", "9", page("again"), MaxAge)
	if a, _, ok := c.Get("9"); !ok || a.Text != "again" || c.age.Len() != 4 {
		t.Errorf("Get(9) = %v, %v with %d entries; want the new answer and 4", a, ok, c.age.Len())
	}
	c = New(1000, 64<<10)
	big := strings.Repeat("x", 6<<10)
	for i := range 100 {
		c.Put("me", fmt.Sprint(i), page(big), MaxAge)
		if c.held > 64<<10 {
			t.Fatalf("%d bytes held, want at most %d", c.held, 64<<10)
		}
	}
	if _, _, ok := c.Get("99"); !ok {
		t.Error("Get returned no newest entry, want it")
	}
	c.Put("me", "99", page(big+big), MaxAge) // too large; the old entry is outdated
	if _, _, ok := c.Get("99"); ok {
		t.Error("Get returned an entry for an answer that is too large, want none")
	}
	New(0, 0).Put("me", "a", page("x"), MaxAge)
}

// An owner with many entries does not evict those of owners with few.
func TestEvictionIsFair(t *testing.T) {
	for name, c := range map[string]*Cache{"entries": New(10, 1<<20), "bytes": New(1000, 40<<10)} {
		big := strings.Repeat("x", 2<<10)
		for i := range 3 {
			c.Put("few", fmt.Sprint("few ", i), page(big), MaxAge)
		}
		for i := range 100 {
			c.Put("many", fmt.Sprint("many ", i), page(big), MaxAge)
		}
		for i := range 3 {
			if _, _, ok := c.Get(fmt.Sprint("few ", i)); !ok {
				t.Errorf("%s: entry %d of another owner was evicted, want it kept", name, i)
			}
		}
		if _, _, ok := c.Get("many 99"); !ok || c.shares["many"].age.Len() < 5 {
			t.Errorf("%s: %d entries of the owner of many, newest kept: %v; want at least 5 and true", name,
				c.shares["many"].age.Len(), ok)
		}
		for i := range 50 { // every owner gets space
			c.Put(fmt.Sprint("caller ", i), fmt.Sprint("caller ", i), page(big), MaxAge)
			if _, _, ok := c.Get(fmt.Sprint("caller ", i)); !ok {
				t.Errorf("%s: entry of caller %d is missing, want it kept", name, i)
			}
		}
		if len(c.shares) > c.age.Len() || c.held > c.bytes || c.age.Len() > c.entries {
			t.Errorf("%s: %d owners, %d entries, %d bytes; want at most one owner an entry, %d entries, %d bytes", name,
				len(c.shares), c.age.Len(), c.held, c.entries, c.bytes)
		}
	}
}

func TestLife(t *testing.T) {
	head := func(fields ...string) web.Answer {
		a := page("x")
		for i := 0; i < len(fields); i += 2 {
			a.Header = append(a.Header, [2]string{fields[i], fields[i+1]})
		}
		return a
	}
	for _, c := range []struct {
		name string
		a    web.Answer
		want time.Duration
	}{
		{"a page", head("Content-Type", "text/html"), MaxAge},
		{"a longer time", head("Cache-Control", "public, max-age=86400"), MaxAge},
		{"a shorter time", head("cache-control", "max-age=60, must-revalidate"), time.Minute},
		{"part of which is over", head("Age", "20", "Cache-Control", "max-age=60"), 40 * time.Second},
		{"all of which is over", head("Age", "99999999999999999999", "Cache-Control", "max-age=60"), time.Minute},
		{"more than all", head("Age", "9999", "Cache-Control", "max-age=60"), 0},
		{"an invalid time", head("Cache-Control", "max-age=soon"), 0},
		{"no-store", head("Cache-Control", "public", "Cache-Control", "No-Store"), 0},
		{"private", head("Cache-Control", `private="x"`), 0},
		{"no-cache", head("Cache-Control", "no-cache"), 0},
		{"a cookie", head("Set-Cookie", "a=b"), 0},
		{"vary by everything", head("Vary", " * "), 0},
		{"vary by everything, among others", head("Vary", "Accept", "Vary", "Cookie, *"), 0},
		{"not found", web.Answer{Status: 404}, 0},
		{"a redirect", web.Answer{Status: 200, RedirectURL: "https://b.example/"}, 0},
		{"a fault", web.Answer{Status: 200, Fault: &web.Fault{}}, 0},
	} {
		if got := Lifetime(c.a); got != c.want {
			t.Errorf("Life(%s) = %s, want %s", c.name, got, c.want)
		}
	}
}
