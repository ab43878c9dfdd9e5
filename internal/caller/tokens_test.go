package caller

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

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
