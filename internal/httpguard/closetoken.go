package httpguard

import (
	chain "container/list"
	"net/http"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// CloseToken closes the connections whose last request had the token, except the one of r. Their
// running requests are canceled.
func (l *ConnLimiter) CloseToken(r *http.Request, token string) {
	own, _ := r.Context().Value(connKey{}).(*limitedConn)
	l.closeWhere(func(c *limitedConn) bool { return c.token == token && c != own })
}

// CloseCertificates closes the connections whose last request was identified by a client
// certificate. Their running requests are canceled.
func (l *ConnLimiter) CloseCertificates() {
	l.closeWhere(func(c *limitedConn) bool { return strings.HasPrefix(c.token, caller.CertificatePrefix) })
}

func (l *ConnLimiter) closeWhere(match func(*limitedConn) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.callers {
		l.closeWhereOf(h, match)
	}
	l.closeWhereOf(l.operators, match)
}

// closeWhereOf is closeWhere for one holder. The caller holds the lock.
func (l *ConnLimiter) closeWhereOf(h *connHolder, match func(*limitedConn) bool) {
	for _, list := range []*chain.List{&h.idle, &h.busy} {
		for at := list.Front(); at != nil; {
			c := at.Value.(*limitedConn) // the lists hold nothing else
			at = at.Next()
			if match(c) {
				l.detach(c)
				c.Conn.Close() // the client finds out by its next read
			}
		}
	}
}
