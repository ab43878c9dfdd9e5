package ui

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// opened opens a session and returns a request that has its cookie and page's secret.
func opened(t *testing.T, s *Sessions, c Credential) *http.Request {
	t.Helper()
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/ui/session", http.NoBody)
	page, err := s.Open(w, r, c)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(Header, page)
	r.AddCookie(w.Result().Cookies()[0])
	return r
}

func open(t *testing.T, path string) *Sessions {
	t.Helper()
	s, err := OpenSessions(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSessionsSurviveARestartWithoutTheirSecret(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	r := opened(t, open(t, path), Credential{Token: "a"})
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), r.Cookies()[0].Value) || strings.Contains(string(b), r.Header.Get(Header)) {
		t.Errorf("the file has a secret: %s", b)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("Stat = %v, %v; want mode 0600", info, err)
	}
	s := open(t, path)
	if c, given, ok := s.Find(r); !given || !ok || c.Token != "a" {
		t.Errorf("Find() after a restart = %v, %v, %v; want the session", c, given, ok)
	}
	if known, err := s.End(httptest.NewRecorder(), r); !known || err != nil {
		t.Fatalf("End() = %v, %v; want true and no error", known, err)
	}
	if _, given, ok := open(t, path).Find(r); !given || ok {
		t.Errorf("Find() after End and a restart = %v, %v; want true, false", given, ok)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenSessions(path); err == nil {
		t.Error("OpenSessions of a damaged file succeeded, want an error")
	}
}

func TestSessionsAreBoundedAndDropTheLeastRecentlyUsed(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	now := time.Now()
	s.now = func() time.Time { now = now.Add(time.Second); return now }
	first, second := opened(t, s, Credential{Token: "a"}), opened(t, s, Credential{Token: "a"})
	for range MaxEach - 2 {
		opened(t, s, Credential{Token: "a"})
	}
	if _, _, ok := s.Find(first); !ok {
		t.Fatal("the first session ended before the bound was reached")
	}
	opened(t, s, Credential{Token: "a"})
	_, _, firstOpen := s.Find(first)
	_, _, secondOpen := s.Find(second)
	if s.Len() != MaxEach || !firstOpen || secondOpen {
		t.Errorf("Len() = %d, first open %v, second open %v; want %d, true, false", s.Len(), firstOpen, secondOpen, MaxEach)
	}
	for i := range MaxSessions {
		opened(t, s, Credential{Token: strings.Repeat("b", i+1)})
	}
	if s.Len() != MaxSessions {
		t.Errorf("Len() = %d, want %d", s.Len(), MaxSessions)
	}
}

func TestSessionEndsWhenIdleOrOld(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	now := time.Now()
	s.now = func() time.Time { return now }
	idle, used := opened(t, s, Credential{Token: "a"}), opened(t, s, Credential{Token: "a"})
	for passed := time.Duration(0); passed < MaxTime; passed += IdleTime - time.Minute {
		if _, _, ok := s.Find(used); !ok {
			t.Fatalf("a used session ended after %v, want %v", passed, MaxTime)
		}
		now = now.Add(IdleTime - time.Minute)
	}
	for name, r := range map[string]*http.Request{"idle": idle, "old": used} {
		if _, given, ok := s.Find(r); !given || ok {
			t.Errorf("Find() of an %s session = %v, %v; want true, false", name, given, ok)
		}
	}
	if s.Len() != 0 {
		t.Errorf("Len() = %d, want 0", s.Len())
	}
}

func TestDropEndsTheSessionsOfACredential(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	a, b := opened(t, s, Credential{Token: "a"}), opened(t, s, Credential{Own: "a"})
	if err := s.Drop(Credential{Token: "a"}); err != nil {
		t.Fatal(err)
	}
	_, _, aOpen := s.Find(a)
	_, _, bOpen := s.Find(b)
	if aOpen || !bOpen {
		t.Errorf("after Drop: open %v and %v, want false and true", aOpen, bOpen)
	}
}

// Over TLS, a cookie that another host or a page without TLS could have set means nothing.
func TestPlainCookieMeansNothingOverTLS(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	r := opened(t, s, Credential{Token: "a"})
	r.Header.Set("X-Forwarded-Proto", "https")
	if _, given, _ := s.Find(r); given {
		t.Error("Find() over TLS accepted the cookie without the prefix __Host-")
	}
}

// Anybody may send DELETE /ui/session with any cookie.
func TestEndOfUnknownSessionWritesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	s := open(t, path)
	r := httptest.NewRequest(http.MethodDelete, "/ui/session", http.NoBody)
	r.AddCookie(&http.Cookie{Name: plainCookie, Value: "x"})
	if known, err := s.End(httptest.NewRecorder(), r); known || err != nil {
		t.Errorf("End() with an unknown cookie = %v, %v; want false and no error", known, err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("Stat of the file = %v, want that it was not written", err)
	}
}

// Browsers send the cookie to every port of its host, so whoever listens on one has it.
func TestCookieWithoutPageSecretOpensNothing(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	own, other := opened(t, s, Credential{Token: "a"}), opened(t, s, Credential{Token: "a"})
	page := own.Header.Get(Header)
	for _, secret := range []string{"", "1", page[1:], other.Header.Get(Header), own.Cookies()[0].Value, keyOf(page)} {
		own.Header.Set(Header, secret)
		if _, given, ok := s.Find(own); !given || ok {
			t.Errorf("Find() with page's secret %q = %v, %v; want true, false", secret, given, ok)
		}
		if known, err := s.End(httptest.NewRecorder(), own); known || err != nil {
			t.Errorf("End() with page's secret %q = %v, %v; want false and no error", secret, known, err)
		}
	}
	own.Header.Del(Header)
	own.Header.Set("Sec-WebSocket-Protocol", "x, "+SubprotocolPrefix+page)
	if _, _, ok := s.Find(own); !ok {
		t.Error("Find() refused the page's secret in a subprotocol")
	}
}

// An earlier version stored sessions without a page's secret.
func TestSessionWithoutPageSecretEndsAtStart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	stored := `{"` + keyOf("x") + `":{"token":"a","opened":"2999-01-01T00:00:00Z","used":"2999-01-01T00:00:00Z"}}`
	if err := os.WriteFile(path, []byte(stored), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := open(t, path).Len(); got != 0 {
		t.Errorf("Len() = %d, want 0", got)
	}
}
