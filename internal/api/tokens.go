package api

import (
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

func (s *Server) tokenRoutes() []route {
	return []route{
		{
			method: "POST", path: "/v1/tokens", handle: s.createToken, status: http.StatusCreated, operator: true,
			summary: "Create a token; only this answer has its secret", body: v1.TokenRequest{}, answer: v1.Token{},
		},
		{
			method: "GET", path: "/v1/tokens", handle: s.listTokens,
			summary: "List tokens, newest first", answer: v1.List[v1.Token]{},
		},
		{
			method: "DELETE", path: "/v1/tokens/{id}", handle: s.revokeToken,
			summary: "Revoke a token, and end its requests and streams", answer: v1.Token{},
		},
	}
}

func (s *Server) createToken(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.TokenRequest
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	got, err := s.opts.Engine.Callers.CreateToken(r.Context(), p, req)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	return reply(w, http.StatusCreated, got)
}

func (s *Server) listTokens(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	items, err := s.opts.Engine.Callers.Tokens(r.Context(), p)
	return replyList(w, items, err)
}

func (s *Server) revokeToken(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	got, err := s.opts.Engine.Callers.RevokeToken(r.Context(), p, r.PathValue("id"))
	if err != nil {
		return err
	}
	s.conns.CloseToken(r, got.ID) // streams and calls in progress end as well
	return reply(w, http.StatusOK, got)
}

var (
	// errUnauthenticated is answered with 401. errdefs has no class that distinguishes 401 from
	// 403.
	errUnauthenticated = usererror.Errorf(errdefs.ErrUnauthenticated, "a bearer token is required")
	errAuthorization   = usererror.Errorf(errdefs.ErrUnauthenticated,
		"invalid Authorization header: send one header, \"Authorization: Bearer TOKEN\", or none")
)

// token returns the service's own token, or "".
func (s *Server) token() string {
	if t := s.replaced.Load(); t != nil {
		return *t
	}
	return s.opts.Token
}

// SetToken replaces Options.Token for later requests.
func (s *Server) SetToken(token string) { s.replaced.Store(&token) }

// EndToken closes the connections whose last request was identified by a token or client
// certificate. Their running requests are canceled.
func (s *Server) EndToken(id string) { s.conns.CloseToken(&http.Request{}, id) }

// EndCertificates is EndToken for all client certificates.
func (s *Server) EndCertificates() { s.conns.CloseCertificates() }

// bearerToken returns the token of the Authorization header. given is false if the header is
// missing. Any other form, also several headers, is an error: a request with credentials is never
// served without them.
func bearerToken(h http.Header) (token string, given bool, err error) {
	values, given := h["Authorization"]
	if !given {
		return "", false, nil
	}
	if len(values) != 1 {
		return "", true, errAuthorization
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimLeft(token, " ") // RFC 9110, 11.4: one or more spaces
	if !strings.EqualFold(scheme, "Bearer") || token == "" || strings.ContainsAny(token, " \t") {
		return "", true, errAuthorization
	}
	return token, true, nil
}

// identify returns the caller of a request. A token that the service issued identifies its caller
// on every listener. A request without an Authorization header belongs to the caller of its client
// certificate. Without one it is the local operator, if the service has no token of its own. If it
// has one, only that token identifies the operator. A request of the dashboard has the cookie of a
// session in place of a token.
func (s *Server) identify(rt route, r *http.Request) (caller.Principal, error) {
	got, given, err := bearerToken(r.Header)
	p := caller.Local("")
	if !given {
		if known, has, err := s.identifySession(rt, r); has {
			known.Key = r.Header.Get("Idempotency-Key")
			return known, err
		}
	}
	switch {
	case err != nil:
		return caller.Principal{}, err
	case !given && hasCertificate(r):
		if p, err = s.identifyCertificate(r); err != nil {
			return caller.Principal{}, err
		}
	case !given && s.token() != "":
		return caller.Principal{}, errUnauthenticated
	case !given:
	case s.token() != "" && subtle.ConstantTimeCompare([]byte(got), []byte(s.token())) == 1:
	case !strings.HasPrefix(got, caller.TokenPrefix):
		return caller.Principal{}, caller.ErrToken
	default:
		if p, err = s.opts.Engine.Callers.Identify(r.Context(), got); err != nil {
			return caller.Principal{}, err
		}
	}
	p.Key, p.Via = r.Header.Get("Idempotency-Key"), "http"
	return p, nil
}

// hasCertificate reports whether the client sent a certificate, which the listener has verified.
func hasCertificate(r *http.Request) bool { return r.TLS != nil && len(r.TLS.VerifiedChains) > 0 }

// identifyCertificate returns the caller of a request with a client certificate. Browsers send
// certificates with requests of any page, so requests of other origins are refused.
func (s *Server) identifyCertificate(r *http.Request) (caller.Principal, error) {
	if err := http.NewCrossOriginProtection().Check(r); err != nil {
		return caller.Principal{}, usererror.Errorf(errdefs.ErrPermissionDenied, "a page of another origin sent this request: use a token")
	}
	if s.opts.Trusts != nil && !s.opts.Trusts(r.TLS.VerifiedChains) {
		return caller.Principal{}, errUnauthenticated
	}
	p, ok := s.opts.Engine.Callers.IdentifyCertificate(r.TLS.PeerCertificates[0])
	if !ok {
		return caller.Principal{}, errUnauthenticated
	}
	return p, nil
}
