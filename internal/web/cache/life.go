package cache

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// Lifetime returns how long an answer may be cached: MaxAge or less, as its header says. It is zero
// for incomplete or failed answers, for answers meant for one user (private, Set-Cookie, Vary: *),
// and for those that must be revalidated.
func Lifetime(a web.Answer) time.Duration {
	if a.Fault != nil || a.Status != http.StatusOK || a.RedirectURL != "" {
		return 0
	}
	life := MaxAge
	var age time.Duration
	for _, h := range a.Header {
		switch strings.ToLower(h[0]) {
		case "set-cookie", "set-cookie2":
			return 0
		case "vary":
			for part := range strings.SplitSeq(h[1], ",") {
				if strings.TrimSpace(part) == "*" {
					return 0
				}
			}
		case "age":
			age = seconds(h[1])
		case "cache-control":
			life = min(life, allowed(h[1]))
		}
	}
	return max(life-age, 0)
}

// allowed returns the lifetime by a Cache-Control field.
func allowed(value string) time.Duration {
	life := MaxAge
	for part := range strings.SplitSeq(value, ",") {
		name, arg, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "no-store", "no-cache", "private":
			return 0
		case "max-age":
			life = min(life, seconds(arg))
		}
	}
	return life
}

// seconds parses a number of seconds. Invalid text gives 0, and large numbers give MaxAge.
func seconds(s string) time.Duration {
	n, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(s), `"`), 10, 63)
	if err != nil {
		return 0
	}
	return time.Duration(min(n, uint64(MaxAge/time.Second))) * time.Second
}
