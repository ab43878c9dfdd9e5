package cache

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// Life is how long an answer may be kept: MaxAge, or less where it says so. It
// is zero for what is no whole success, for what is meant for one visitor
// (private, Set-Cookie, Vary: *) and for what has to be asked for again each
// time.
func Life(a web.Answer) time.Duration {
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

// allowed is what a Cache-Control field says.
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

// seconds reads a number of seconds; what is none is 0, one that is too large
// is MaxAge.
func seconds(s string) time.Duration {
	n, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(s), `"`), 10, 63)
	if err != nil {
		return 0
	}
	return time.Duration(min(n, uint64(MaxAge/time.Second))) * time.Second
}
