package ui

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
)

const (
	// MaxSessions bounds all sessions, and MaxEach those of one credential. The least recently used
	// one makes place for a new one.
	MaxSessions = 1000
	MaxEach     = 20
	// IdleTime ends a session that is not used. MaxTime ends every session.
	IdleTime = 12 * time.Hour
	MaxTime  = 7 * 24 * time.Hour

	secretBytes = 32
	fileMode    = 0o600
)

// Names of the cookie. Browsers accept the second one only over TLS and for exactly one host.
const (
	plainCookie  = "orchestrator_session"
	secureCookie = "__Host-orchestrator_session"
)

// Credential is what a session was opened with: the id of a token, or the SHA-256 in hex of the
// service's own token. Exactly one is set.
type Credential struct {
	Token string `json:"token,omitempty"`
	Own   string `json:"own,omitempty"`
}

// session is stored under the SHA-256 of its cookie, so that the file opens nothing.
type session struct {
	Credential
	// Page is the SHA-256 in hex of the page's secret, without which the cookie opens nothing.
	Page   string    `json:"page"`
	Opened time.Time `json:"opened"`
	Used   time.Time `json:"used"` // of the file: when it was last written
}

// Sessions are the open sessions of the dashboard.
type Sessions struct {
	path string // "": not stored
	now  func() time.Time

	mu    sync.Mutex
	byKey map[string]*session
}

// OpenSessions reads the sessions that an earlier process stored at path. With path "", sessions
// end with the process. A file that cannot be parsed is an error.
func OpenSessions(path string) (*Sessions, error) {
	s := &Sessions{path: path, now: time.Now, byKey: map[string]*session{}}
	if path == "" {
		return s, nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &s.byKey); err != nil {
		return nil, fmt.Errorf("read the sessions of the dashboard: %s: %w: remove the file to end all sessions", path, err)
	}
	maps.DeleteFunc(s.byKey, func(_ string, e *session) bool { return e == nil || e.Page == "" })
	return s, nil
}

// Open opens a session, sets its cookie and returns the page's secret: requests need both. The
// cookie is limited to TLS if the request came over TLS, or a proxy says so.
func (s *Sessions) Open(w http.ResponseWriter, r *http.Request, c Credential) (page string, err error) {
	text, page := newSecret(), newSecret()
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropEnded(now)
	s.makePlace(func(e *session) bool { return e.Credential == c }, MaxEach)
	s.makePlace(func(*session) bool { return true }, MaxSessions)
	s.byKey[keyOf(text)] = &session{Credential: c, Page: keyOf(page), Opened: now, Used: now}
	if err := s.store(); err != nil {
		delete(s.byKey, keyOf(text))
		return "", err
	}
	http.SetCookie(w, cookie(r, text, MaxTime))
	return page, nil
}

func newSecret() string {
	b := make([]byte, secretBytes)
	_, _ = rand.Read(b) // never fails, see its documentation
	return base64.RawURLEncoding.EncodeToString(b)
}

// Find returns the credential of the request's session. given reports whether the request has the
// cookie of a session, and ok whether that session is open and the request has the page's secret
// too.
func (s *Sessions) Find(r *http.Request) (c Credential, given, ok bool) {
	secret, given := secretOf(r)
	if !given {
		return Credential{}, false, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byKey[keyOf(secret)]
	now := s.now()
	if e == nil || e.ended(now) || !e.isPage(r) {
		return Credential{}, true, false
	}
	e.Used = now
	return e.Credential, true, true
}

// End ends the request's session, which it must have both secrets of, and removes its cookie. known
// reports whether there was one: an unknown cookie must not cost a write of the file.
func (s *Sessions) End(w http.ResponseWriter, r *http.Request) (known bool, err error) {
	http.SetCookie(w, cookie(r, "", -time.Second))
	secret, given := secretOf(r)
	if !given {
		return false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(secret)
	if e := s.byKey[key]; e == nil || !e.isPage(r) {
		return false, nil
	}
	delete(s.byKey, key)
	return true, s.store()
}

// Drop ends all sessions of a credential, which is not valid any more.
func (s *Sessions) Drop(c Credential) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.byKey)
	maps.DeleteFunc(s.byKey, func(_ string, e *session) bool { return e.Credential == c })
	if len(s.byKey) == before {
		return nil
	}
	return s.store()
}

// Len returns the number of open sessions.
func (s *Sessions) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropEnded(s.now())
	return len(s.byKey)
}

// isPage reports whether a request has the page's secret.
func (e *session) isPage(r *http.Request) bool {
	return subtle.ConstantTimeCompare([]byte(keyOf(pageSecretOf(r))), []byte(e.Page)) == 1
}

func (e *session) ended(now time.Time) bool {
	return now.Sub(e.Used) > IdleTime || now.Sub(e.Opened) > MaxTime
}

func (s *Sessions) dropEnded(now time.Time) {
	maps.DeleteFunc(s.byKey, func(_ string, e *session) bool { return e.ended(now) })
}

// makePlace removes the least recently used sessions that match until less than most are left.
func (s *Sessions) makePlace(match func(*session) bool, most int) {
	var keys []string
	for key, e := range s.byKey {
		if match(e) {
			keys = append(keys, key)
		}
	}
	if len(keys) < most {
		return
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(s.byKey[a].Used.Compare(s.byKey[b].Used), cmp.Compare(a, b))
	})
	for _, key := range keys[:len(keys)-most+1] {
		delete(s.byKey, key)
	}
}

// store writes the file. The caller holds mu.
func (s *Sessions) store() error {
	if s.path == "" {
		return nil
	}
	b, err := json.Marshal(s.byKey)
	if err != nil {
		return err
	}
	return hostfile.Replace(s.path, b, fileMode)
}

func keyOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// secretOf returns the secret in the request's cookie. Over TLS only the cookie counts that another
// host cannot have set.
func secretOf(r *http.Request) (string, bool) {
	names := []string{secureCookie, plainCookie}
	if overTLS(r) {
		names = names[:1]
	}
	for _, name := range names {
		if c, err := r.Cookie(name); err == nil {
			return c.Value, true
		}
	}
	return "", false
}

func cookie(r *http.Request, value string, age time.Duration) *http.Cookie {
	c := &http.Cookie{
		Name: plainCookie, Value: value, Path: "/", MaxAge: int(age.Seconds()), HttpOnly: true,
		SameSite: http.SameSiteStrictMode,
	}
	if overTLS(r) {
		c.Name, c.Secure = secureCookie, true
	}
	return c
}

// overTLS reports whether the browser uses TLS. A client that invents the proxy's header gets a
// cookie that its own browser does not send, and nothing else.
func overTLS(r *http.Request) bool {
	return r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https"
}
