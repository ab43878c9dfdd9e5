package engine

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

// TokenPrefix begins every token that this service makes:
// orc_<id>_<43 characters of base64url>.
const TokenPrefix = "orc_"

const (
	tokenBytes   = 32 // of the secret
	tokenIDBytes = 8
	maxNote      = 1024
	maxTokenTTL  = 10 * 365 * 24 * time.Hour
	maxTokens    = 100_000 // good ones: all of them are kept in memory
)

// callerPattern is that of workspaces' names.
var callerPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// ErrToken is one for everything that is not a good token, so that nothing is
// learned from it.
var ErrToken = usererror.Errorf(errdefs.ErrUnauthenticated, "the bearer token is not known, or not good any more")

// requireOperator refuses who is no operator.
func (c Call) requireOperator(what string) error {
	if c.Operator {
		return nil
	}
	return usererror.Errorf(errdefs.ErrPermissionDenied, "only operators may %s: use the service's own socket or token, or a token made with operator", what)
}

// Operate refuses callers who are no operators; what is what they may not do.
func (c Call) Operate(what string) error { return c.requireOperator(what) }

// keyless is the call without its idempotency key, for what it makes on its
// way.
func (c Call) keyless() Call {
	c.Key = ""
	return c
}

// callers are the good tokens, all in memory: the process that holds the state
// directory is the only one that makes or revokes them. It also counts what
// callers did today.
type callers struct {
	store *store.Store
	now   func() time.Time

	mu     sync.RWMutex
	tokens map[string]*grant // by id

	counts counts
}

// grant is what a good token gives.
type grant struct {
	token store.Token
	used  atomic.Int64 // nanoseconds since 1970; 0: not since it was stored
}

func newCallers(ctx context.Context, st *store.Store) (*callers, error) {
	c := &callers{store: st, now: time.Now, tokens: map[string]*grant{}}
	rows, err := st.Tokens(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range rows {
		if t.Revoked.IsZero() {
			c.tokens[t.ID] = &grant{token: t}
		}
	}
	return c, c.counts.load(ctx, st, c.now())
}

// Identify finds the caller of a token. What is no token, or not good any
// more, is of class Unauthenticated, with one message for all of them. It asks
// no database.
func (e *Engine) Identify(_ context.Context, token string) (Call, error) {
	c := e.callers
	id, secret, ok := splitToken(token)
	c.mu.RLock()
	g := c.tokens[id]
	c.mu.RUnlock()
	if !ok || g == nil {
		return Call{}, ErrToken
	}
	sum := sha256.Sum256([]byte(secret))
	now := c.now()
	t := g.token
	if subtle.ConstantTimeCompare(sum[:], t.Hash) != 1 || !t.Expires.IsZero() && !now.Before(t.Expires) {
		return Call{}, ErrToken
	}
	g.used.Store(now.UnixNano())
	return Call{Caller: t.Caller, Token: t.ID, Profile: t.Profile, Trust: t.Trust, Quotas: t.Quotas, Operator: t.Operator}, nil
}

func splitToken(token string) (id, secret string, ok bool) {
	rest, ok := strings.CutPrefix(token, TokenPrefix)
	if !ok {
		return "", "", false
	}
	id, secret, ok = strings.Cut(rest, "_") // an id has none
	return id, secret, ok && len(id) == hex.EncodedLen(tokenIDBytes) && len(secret) == base64.RawURLEncoding.EncodedLen(tokenBytes)
}

// CreateToken makes a token; its secret is in the answer and nowhere else. An
// idempotency key does not count here: the secret is not kept for a second
// answer.
func (e *Engine) CreateToken(ctx context.Context, call Call, r v1.TokenRequest) (v1.Token, error) {
	if err := call.requireOperator("make tokens"); err != nil {
		return v1.Token{}, err
	}
	t, secret, err := e.createToken(ctx, r)
	if err != nil {
		e.recordOperator(ctx, call, audit.Record{Action: "token.create"}, r, err)
		return v1.Token{}, err
	}
	out := presentToken(t)
	e.recordOperator(ctx, call, audit.Record{Action: "token.create"}, out, nil)
	out.Secret = TokenPrefix + t.ID + "_" + secret
	return out, nil
}

func (e *Engine) createToken(ctx context.Context, r v1.TokenRequest) (t store.Token, secret string, err error) {
	if err := e.checkToken(r); err != nil {
		return t, "", err
	}
	raw := make([]byte, tokenIDBytes+tokenBytes)
	if _, err := rand.Read(raw); err != nil {
		return t, "", err
	}
	id := hex.EncodeToString(raw[:tokenIDBytes])
	secret = base64.RawURLEncoding.EncodeToString(raw[tokenIDBytes:])
	sum := sha256.Sum256([]byte(secret))
	c := e.callers
	t = store.Token{
		ID: id, Hash: sum[:], Caller: r.Caller, Profile: r.Profile, Trust: r.Trust, Quotas: r.Quotas, Operator: r.Operator, Note: r.Note,
		Created: c.now().UTC(),
	}
	if r.TTLMS > 0 {
		t.Expires = t.Created.Add(time.Duration(r.TTLMS) * time.Millisecond)
	}
	return t, secret, c.add(ctx, t)
}

// add records a token before it can be used.
func (c *callers) add(ctx context.Context, t store.Token) error {
	c.mu.RLock()
	n := len(c.tokens)
	c.mu.RUnlock()
	if n >= maxTokens {
		return usererror.Errorf(errdefs.ErrResourceExhausted, "there are %d tokens: revoke those that nobody uses", n)
	}
	if err := c.store.InsertToken(ctx, t); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokens[t.ID] = &grant{token: t}
	return nil
}

func (e *Engine) checkToken(r v1.TokenRequest) error {
	q := r.Quotas
	switch {
	case !callerPattern.MatchString(r.Caller):
		return invalid("caller", "is %q: use lower-case letters, digits, '.', '_' or '-', at most 63 of them, and begin with a letter or a digit", r.Caller)
	case r.Caller == LocalCaller:
		return invalid("caller", "is %q, which is who uses the service's own socket: use another name", r.Caller)
	case r.Trust < tool.TrustNone || r.Trust > tool.TrustMax:
		return invalid("trust", "is %d: from %d to %d", r.Trust, tool.TrustNone, tool.TrustMax)
	case q.Sandboxes < 0:
		return invalid("quotas.sandboxes", "is %d: not negative; 0 is the service's default", q.Sandboxes)
	case q.MemoryBytes < 0:
		return invalid("quotas.memory_bytes", "is %d: not negative; 0 is the service's default", q.MemoryBytes)
	case q.DiskBytes < 0:
		return invalid("quotas.disk_bytes", "is %d: not negative; 0 is the service's default", q.DiskBytes)
	case q.Calls < 0:
		return invalid("quotas.calls", "is %d: not negative; 0 is the service's default", q.Calls)
	case r.TTLMS < 0 || r.TTLMS > maxTokenTTL.Milliseconds():
		return invalid("ttl_ms", "is %d: from 0, which is for ever, to %d", r.TTLMS, maxTokenTTL.Milliseconds())
	case len(r.Note) > maxNote || !utf8.ValidString(r.Note):
		return invalid("note", "is over %d bytes, or not valid UTF-8", maxNote)
	}
	switch {
	case r.Profile == "":
		return nil
	case e.opts.CheckProfile != nil:
		return e.opts.CheckProfile(r.Profile)
	case e.opts.Governance != nil:
		_, err := e.requestedProfile(Local(""), r.Profile)
		return err
	}
	return nil
}

// Tokens lists all, newest first. Only operators may.
func (e *Engine) Tokens(ctx context.Context, call Call) ([]v1.Token, error) {
	if err := call.requireOperator("list tokens"); err != nil {
		return nil, err
	}
	rows, err := e.opts.Store.Tokens(ctx)
	if err != nil {
		return nil, err
	}
	c := e.callers
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]v1.Token, 0, len(rows))
	for _, t := range rows {
		if g := c.tokens[t.ID]; g != nil {
			if used := g.used.Load(); used != 0 {
				t.Used = time.Unix(0, used).UTC()
			}
		}
		out = append(out, presentToken(t))
	}
	return out, nil
}

// RevokeToken ends a token at once; only operators may. Calls under way go on.
// Twice is the same as once.
func (e *Engine) RevokeToken(ctx context.Context, call Call, id string) (v1.Token, error) {
	if err := call.requireOperator("revoke tokens"); err != nil {
		return v1.Token{}, err
	}
	c := e.callers
	t, err := c.store.RevokeToken(ctx, id, c.now())
	defer func() { // once it is over
		e.recordOperator(ctx, call, audit.Record{Action: "token.revoke"}, map[string]string{"id": truncateForRecord(id), "caller": t.Caller}, err)
	}()
	if err != nil {
		return v1.Token{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.tokens, id)
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

// Times between writes of what is counted in memory.
const (
	countTime = time.Second
	usedTime  = time.Minute
)

// run writes down what is counted in memory until ctx ends, and then once
// more. A crash loses a second's calls at most. What cannot be written is
// tried again.
func (c *callers) run(ctx context.Context, log *slog.Logger) error {
	t := time.NewTicker(countTime)
	defer t.Stop()
	for noted := time.Now(); ; {
		select {
		case <-ctx.Done():
			return c.finalFlush(ctx)
		case <-t.C:
		}
		err := c.counts.flush(ctx, c.store)
		if now := time.Now(); now.Sub(noted) >= usedTime {
			noted = now
			err = errors.Join(err, c.noteUses(ctx))
		}
		if err != nil && ctx.Err() == nil {
			log.Warn("calls and uses of tokens not written down; trying again", "error", err)
		}
	}
}

// finalFlush writes down what is left when the service ends.
func (c *callers) finalFlush(ctx context.Context) error {
	ctx, cancel := detach(ctx, 10*time.Second)
	defer cancel()
	return errors.Join(c.counts.flush(ctx, c.store), c.noteUses(ctx))
}

// noteUses stores when tokens were last used.
func (c *callers) noteUses(ctx context.Context) error {
	c.mu.RLock()
	all := maps.Clone(c.tokens)
	c.mu.RUnlock()
	used := map[string]time.Time{}
	for id, g := range all {
		if at := g.used.Load(); at != 0 && at != g.token.Used.UnixNano() {
			used[id] = time.Unix(0, at)
		}
	}
	if len(used) == 0 {
		return nil
	}
	return c.store.TouchTokens(ctx, used)
}
