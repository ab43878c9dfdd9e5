package caller

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
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

func newService(t *testing.T) *Service {
	t.Helper()
	db, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return reopen(t, db)
}

func reopen(t *testing.T, db *store.Store) *Service {
	t.Helper()
	s, err := Open(t.Context(), Options{Store: db, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Expired tokens leave memory, so they neither count against the limit nor come back at a start.
func TestExpiredTokensLeaveMemory(t *testing.T) {
	s := newService(t)
	op := Local("")
	short, err := s.CreateToken(t.Context(), op, v1.TokenRequest{Caller: "ben", TTLMS: 600_000})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Identify(t.Context(), short.Secret); err != nil {
		t.Fatalf("Identify() before the expiry: %v", err)
	}
	ended := time.Now().Add(time.Hour)
	for i := len(s.tokens); i < maxTokens; i++ {
		id := fmt.Sprintf("%016x", i)
		s.tokens[id] = &grant{token: store.Token{ID: id, Expires: ended}}
	}
	_, err = s.CreateToken(t.Context(), op, v1.TokenRequest{Caller: "ben"})
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("CreateToken() over the limit = %v, want ResourceExhausted", err)
	}
	s.Now = func() time.Time { return ended }
	if _, err := s.CreateToken(t.Context(), op, v1.TokenRequest{Caller: "ben"}); err != nil {
		t.Errorf("CreateToken() after the others have expired: %v, want no error", err)
	}
	if len(s.tokens) != 1 {
		t.Errorf("%d tokens in memory, want 1", len(s.tokens))
	}
	rows, err := s.store.Tokens(t.Context())
	if err != nil || len(rows) != 2 {
		t.Fatalf("%d stored tokens, %v; want 2", len(rows), err)
	}
	if rows[1].ID != short.ID || rows[1].Used.IsZero() {
		t.Errorf("row of the expired token = %+v, want token %s with its last use", rows[1], short.ID)
	}
	if _, err := s.store.RevokeToken(t.Context(), rows[0].ID, ended); err != nil {
		t.Fatal(err)
	}
	past := store.Token{ID: "past", Hash: []byte("x"), Created: ended, Expires: time.Now()}
	if err := s.store.InsertToken(t.Context(), past); err != nil {
		t.Fatal(err)
	}
	if got := reopen(t, s.store); len(got.tokens) != 1 || got.tokens[short.ID] == nil {
		t.Errorf("after a restart %d tokens are in memory, want the one that expires later", len(got.tokens))
	}
}

// insertContext calls a function when a statement begins.
type insertContext struct {
	context.Context
	begins func()
}

func (c insertContext) Done() <-chan struct{} {
	c.begins()
	return c.Context.Done()
}

// A token is in memory before its row exists. Otherwise a revocation between the two would have no
// effect until the next start.
func TestTokenIsInMemoryBeforeItIsStored(t *testing.T) {
	s := newService(t)
	first := -1
	ctx := insertContext{t.Context(), func() {
		s.mu.RLock()
		defer s.mu.RUnlock()
		if first < 0 {
			first = len(s.tokens)
		}
	}}
	if _, err := s.CreateToken(ctx, Local(""), v1.TokenRequest{Caller: "ben"}); err != nil {
		t.Fatal(err)
	}
	if first != 1 {
		t.Errorf("%d tokens in memory when the row was inserted, want 1", first)
	}
}

func TestTokenThatIsNotStoredIsInvalid(t *testing.T) {
	s := newService(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.CreateToken(ctx, Local(""), v1.TokenRequest{Caller: "ben"}); err == nil {
		t.Fatal("CreateToken() with a canceled context succeeded, want an error")
	}
	if len(s.tokens) != 0 {
		t.Errorf("%d tokens in memory, want none", len(s.tokens))
	}
}

// TestUseOfTokenIsStoredOnce checks that the database is not written again for the same use.
func TestUseOfTokenIsStoredOnce(t *testing.T) {
	s := newService(t)
	tok, err := s.CreateToken(t.Context(), Local(""), v1.TokenRequest{Caller: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Identify(t.Context(), tok.Secret); err != nil {
		t.Fatal(err)
	}
	if err := s.noteUses(t.Context()); err != nil {
		t.Fatal(err)
	}
	marker := time.Unix(7, 0).UTC()
	if err := s.store.TouchTokens(t.Context(), map[string]time.Time{tok.ID: marker}); err != nil {
		t.Fatal(err)
	}
	if err := s.noteUses(t.Context()); err != nil {
		t.Fatal(err)
	}
	rows, err := s.store.Tokens(t.Context())
	if err != nil || len(rows) != 1 || !rows[0].Used.Equal(marker) {
		t.Errorf("rows = %+v, %v; want the use that the test wrote, %v", rows, err, marker)
	}
}
