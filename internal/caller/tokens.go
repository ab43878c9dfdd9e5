package caller

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"log/slog"
	"maps"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// TokenPrefix is the prefix of every token: orc_<id>_<43 characters of base64url>.
const TokenPrefix = "orc_"

const (
	tokenBytes   = 32 // of the secret
	tokenIDBytes = 8
	maxNote      = 1024
	maxTokenTTL  = 10 * 365 * 24 * time.Hour
	maxTokens    = 100_000 // tokens in memory: those neither revoked nor expired
)

// NamePattern matches names of callers and of workspaces.
var NamePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// ErrToken is the single error for every bad token, so that the error reveals nothing about the
// token.
var ErrToken = usererror.Errorf(errdefs.ErrUnauthenticated, "the bearer token is unknown, expired or revoked")

// Options configures a Service.
type Options struct {
	Store *store.Store
	// Defaults apply to callers whose tokens set no quotas.
	Defaults Quotas
	// CheckProfile, if set, returns an error if a token may not have the profile.
	CheckProfile func(name string) error
	// Record, if set, records an operator's action and the error it ended with, if any.
	Record func(ctx context.Context, p Principal, action string, input any, cause error)
	Log    *slog.Logger
}

// Service identifies callers and holds their quotas. It holds all valid tokens in memory and counts
// each caller's tool calls of the day. Only the process that holds the state directory creates or
// revokes tokens. Its methods may be called concurrently.
type Service struct {
	// Defaults are those of Options, and Now returns the time. Both are set before the first call.
	Defaults Quotas
	Now      func() time.Time

	opts  Options
	store *store.Store

	mu     sync.RWMutex
	tokens map[string]*grant // by id

	certificates atomic.Pointer[[]Certificate]

	counts counts
}

// grant is a valid token and its last use.
type grant struct {
	token store.Token
	// used is the last use, as Unix time in nanoseconds; 0 if this process saw none. stored is the
	// value of used that the database has.
	used, stored atomic.Int64
}

// Open reads the tokens and the call counts of the day.
func Open(ctx context.Context, opts Options) (*Service, error) {
	if opts.Record == nil {
		opts.Record = func(context.Context, Principal, string, any, error) {}
	}
	s := &Service{opts: opts, store: opts.Store, Defaults: opts.Defaults, Now: time.Now, tokens: map[string]*grant{}}
	rows, err := opts.Store.Tokens(ctx)
	if err != nil {
		return nil, err
	}
	now := s.Now()
	for _, t := range rows {
		if t.Revoked.IsZero() && !expired(t, now) {
			s.tokens[t.ID] = &grant{token: t}
		}
	}
	if err := s.LoadCounts(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// LoadCounts reads the stored call counts of the day.
func (s *Service) LoadCounts(ctx context.Context) error {
	return s.counts.load(ctx, s.store, s.Now())
}

// Identify returns the caller of a token. Every bad token yields ErrToken, of class
// Unauthenticated. It does not query the database.
func (s *Service) Identify(_ context.Context, token string) (Principal, error) {
	id, secret, ok := splitToken(token)
	s.mu.RLock()
	g := s.tokens[id]
	s.mu.RUnlock()
	if !ok || g == nil {
		return Principal{}, ErrToken
	}
	sum := sha256.Sum256([]byte(secret))
	now := s.Now()
	t := g.token
	if subtle.ConstantTimeCompare(sum[:], t.Hash) != 1 || expired(t, now) {
		return Principal{}, ErrToken
	}
	return g.use(now), nil
}

// Resume returns the caller of the token with this id, whose secret was checked earlier, or
// ErrToken if the token was revoked or has expired since.
func (s *Service) Resume(id string) (Principal, error) {
	s.mu.RLock()
	g := s.tokens[id]
	s.mu.RUnlock()
	now := s.Now()
	if g == nil || expired(g.token, now) {
		return Principal{}, ErrToken
	}
	return g.use(now), nil
}

// use notes the use of a token and returns its caller.
func (g *grant) use(now time.Time) Principal {
	g.used.Store(now.UnixNano())
	t := g.token
	return Principal{
		Caller:   t.Caller,
		Token:    t.ID,
		Profile:  t.Profile,
		Trust:    t.Trust,
		Quotas:   t.Quotas,
		Operator: t.Operator,
		Expires:  t.Expires,
	}
}

// Valid reports whether the token with this id is neither revoked nor expired. The id of a client
// certificate is valid while SetCertificates has its entry.
func (s *Service) Valid(id string) bool {
	if name, ok := strings.CutPrefix(id, CertificatePrefix); ok {
		return s.validCertificate(name)
	}
	s.mu.RLock()
	g := s.tokens[id]
	s.mu.RUnlock()
	return g != nil && !expired(g.token, s.Now())
}

func expired(t store.Token, now time.Time) bool { return !t.Expires.IsZero() && !now.Before(t.Expires) }

func splitToken(token string) (id, secret string, ok bool) {
	rest, ok := strings.CutPrefix(token, TokenPrefix)
	if !ok {
		return "", "", false
	}
	id, secret, ok = strings.Cut(rest, "_") // an id contains no underscore
	return id, secret, ok && len(id) == hex.EncodedLen(tokenIDBytes) &&
		len(secret) == base64.RawURLEncoding.EncodedLen(tokenBytes)
}

// CreateToken creates a token. Only this answer holds its secret. The idempotency key is ignored:
// the secret is not stored for a second answer. Only operators may call it.
func (s *Service) CreateToken(ctx context.Context, p Principal, r v1.TokenRequest) (v1.Token, error) {
	if err := p.Operate("make tokens"); err != nil {
		return v1.Token{}, err
	}
	t, secret, err := s.createToken(ctx, r)
	if err != nil {
		s.opts.Record(ctx, p, "token.create", r, err)
		return v1.Token{}, err
	}
	out := presentToken(t)
	s.opts.Record(ctx, p, "token.create", out, nil)
	out.Secret = TokenPrefix + t.ID + "_" + secret
	return out, nil
}

func (s *Service) createToken(ctx context.Context, r v1.TokenRequest) (t store.Token, secret string, err error) {
	if err := s.checkToken(r); err != nil {
		return t, "", err
	}
	raw := make([]byte, tokenIDBytes+tokenBytes)
	if _, err := rand.Read(raw); err != nil {
		return t, "", err
	}
	id := hex.EncodeToString(raw[:tokenIDBytes])
	secret = base64.RawURLEncoding.EncodeToString(raw[tokenIDBytes:])
	sum := sha256.Sum256([]byte(secret))
	t = store.Token{
		ID: id, Hash: sum[:], Caller: r.Caller, Profile: r.Profile, Trust: r.Trust, Quotas: r.Quotas, Operator: r.Operator, Note: r.Note,
		Created: s.Now().UTC(),
	}
	if r.TTLMS > 0 {
		t.Expires = t.Created.Add(time.Duration(r.TTLMS) * time.Millisecond)
	}
	return t, secret, s.add(ctx, t)
}

// add makes a token valid and stores it. The token is in memory before its row exists, so that
// RevokeToken, which needs the row, always finds it there.
func (s *Service) add(ctx context.Context, t store.Token) error {
	if !s.insert(t) {
		if err := s.noteUses(ctx); err != nil { // drops expired tokens
			return err
		}
		if !s.insert(t) {
			return usererror.Errorf(errdefs.ErrResourceExhausted, "too many tokens (%d): revoke unused ones", maxTokens)
		}
	}
	err := s.store.InsertToken(ctx, t)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.tokens, t.ID)
	}
	return err
}

// insert adds a token to those in memory, and reports whether there was room.
func (s *Service) insert(t store.Token) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tokens) >= maxTokens {
		return false
	}
	s.tokens[t.ID] = &grant{token: t}
	return true
}

func (s *Service) checkToken(r v1.TokenRequest) error {
	q := r.Quotas
	switch {
	case !NamePattern.MatchString(r.Caller):
		return usererror.Invalid(
			"caller",
			"is %q: use lower-case letters, digits, '.', '_' or '-', at most 63 of them, and begin with a letter or a digit",
			r.Caller,
		)
	case r.Caller == LocalCaller:
		return usererror.Invalid(
			"caller",
			"is %q, which is reserved for the service's own socket: use another name",
			r.Caller,
		)
	case r.Trust < tool.TrustNone || r.Trust > tool.TrustMax:
		return usererror.Invalid("trust", "is %d: from %d to %d", r.Trust, tool.TrustNone, tool.TrustMax)
	case q.Sandboxes < 0:
		return usererror.Invalid("quotas.sandboxes", "is %d: must not be negative (0: the service's default)", q.Sandboxes)
	case q.MemoryBytes < 0:
		return usererror.Invalid(
			"quotas.memory_bytes",
			"is %d: must not be negative (0: the service's default)",
			q.MemoryBytes,
		)
	case q.DiskBytes < 0:
		return usererror.Invalid("quotas.disk_bytes", "is %d: must not be negative (0: the service's default)", q.DiskBytes)
	case q.Calls < 0:
		return usererror.Invalid("quotas.calls", "is %d: must not be negative (0: the service's default)", q.Calls)
	case r.TTLMS < 0 || r.TTLMS > maxTokenTTL.Milliseconds():
		return usererror.Invalid("ttl_ms", "is %d: from 0 (no expiry) to %d", r.TTLMS, maxTokenTTL.Milliseconds())
	case len(r.Note) > maxNote || !utf8.ValidString(r.Note):
		return usererror.Invalid("note", "is over %d bytes, or not valid UTF-8", maxNote)
	}
	if r.Profile == "" || s.opts.CheckProfile == nil {
		return nil
	}
	return s.opts.CheckProfile(r.Profile)
}

// Tokens lists all tokens, newest first. Only operators may call it.
func (s *Service) Tokens(ctx context.Context, p Principal) ([]v1.Token, error) {
	if err := p.Operate("list tokens"); err != nil {
		return nil, err
	}
	rows, err := s.store.Tokens(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]v1.Token, 0, len(rows))
	for _, t := range rows {
		if g := s.tokens[t.ID]; g != nil {
			if used := g.used.Load(); used != 0 {
				t.Used = time.Unix(0, used).UTC()
			}
		}
		out = append(out, presentToken(t))
	}
	return out, nil
}

// RevokeToken revokes a token at once. It does not end requests that use the token. Revoking twice
// succeeds. Only operators may call it.
func (s *Service) RevokeToken(ctx context.Context, p Principal, id string) (v1.Token, error) {
	if err := p.Operate("revoke tokens"); err != nil {
		return v1.Token{}, err
	}
	t, err := s.store.RevokeToken(ctx, id, s.Now())
	defer func() { // record the outcome
		s.opts.Record(ctx, p, "token.revoke", map[string]string{"id": audit.TruncateName(id), "caller": t.Caller}, err)
	}()
	if err != nil {
		return v1.Token{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tokens, id)
	return presentToken(t), nil
}

func presentToken(t store.Token) v1.Token {
	at := func(t time.Time) *time.Time {
		if t.IsZero() {
			return nil
		}
		return &t
	}
	return v1.Token{
		ID: t.ID, Caller: t.Caller, Profile: t.Profile, Trust: t.Trust, Quotas: t.Quotas, Operator: t.Operator, Note: t.Note,
		CreatedAt: t.Created, ExpiresAt: at(t.Expires), RevokedAt: at(t.Revoked), LastUseAt: at(t.Used),
	}
}

// Intervals between writes of in-memory counters.
const (
	countTime = time.Second
	usedTime  = time.Minute
)

// Run writes counters and last uses to the store until ctx ends, and once more at the end. A crash
// loses at most one second of counts. Failed writes are retried.
func (s *Service) Run(ctx context.Context) error {
	t := time.NewTicker(countTime)
	defer t.Stop()
	for noted := time.Now(); ; {
		select {
		case <-ctx.Done():
			return s.finalFlush(ctx)
		case <-t.C:
		}
		err := s.counts.flush(ctx, s.store)
		if now := time.Now(); now.Sub(noted) >= usedTime {
			noted = now
			err = errors.Join(err, s.noteUses(ctx))
		}
		if err != nil && ctx.Err() == nil {
			s.opts.Log.Warn("failed to store call counts and token uses; will retry", "error", err)
		}
	}
}

// finalFlush writes the remaining counters when the service stops.
func (s *Service) finalFlush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(s.counts.flush(ctx, s.store), s.noteUses(ctx))
}

// noteUses stores when tokens were last used, and drops expired tokens from memory.
func (s *Service) noteUses(ctx context.Context) error {
	s.mu.RLock()
	all := maps.Clone(s.tokens)
	s.mu.RUnlock()
	now := s.Now()
	used := map[string]time.Time{}
	for id, g := range all {
		if at := g.used.Load(); at != g.stored.Load() {
			used[id] = time.Unix(0, at)
		}
	}
	if len(used) > 0 {
		if err := s.store.TouchTokens(ctx, used); err != nil {
			return err
		}
	}
	for id, at := range used {
		all[id].stored.Store(at.UnixNano())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.tokens, func(_ string, g *grant) bool { return expired(g.token, now) })
	return nil
}
