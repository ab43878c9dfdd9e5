package caller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

func TestValidEndsWithExpiry(t *testing.T) {
	now := time.Unix(1000, 0)
	c := &Service{Now: func() time.Time { return now }, tokens: map[string]*grant{
		"forever": {}, "brief": {token: store.Token{Expires: now.Add(time.Second)}},
	}}
	if !c.Valid("forever") || !c.Valid("brief") || c.Valid("revoked") {
		t.Error("Valid differs before the expiry; want the two known tokens")
	}
	now = now.Add(time.Second)
	if !c.Valid("forever") || c.Valid("brief") {
		t.Error("Valid differs at the expiry; want the token without one")
	}
}

func BenchmarkIdentify(b *testing.B) {
	c := &Service{Now: time.Now, tokens: map[string]*grant{}}
	for i := range 1000 {
		id := fmt.Sprintf("%016x", i)
		c.tokens[id] = &grant{}
	}
	token := TokenPrefix + fmt.Sprintf("%016x", 7) + "_" + strings.Repeat("a", 43)
	for b.Loop() {
		_, _ = c.Identify(b.Context(), token)
	}
}
