package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"
)

// refusals counts calls that a quota or rate limit refused. Its methods may be called concurrently.
type refusals struct {
	mu    sync.Mutex
	kinds map[refusalKind]*refused
}

// refusalKind is the key by which refusals are combined into one record.
type refusalKind struct{ caller, action, rule string }

// refused counts the refusals of a kind since its last record.
type refused struct {
	record Record // the last one, without its call id
	count  int64
	bytes  int
}

// Refused records a call that a quota or rate limit refused; r.Rule names it. The record has only
// the size and hash of r.Input.
//
// The first refusal for a caller, action and rule is written before Refused returns. Later ones are
// counted and written as one record per minute, and by Close. A killed process loses that count.
// When the caller's share is used up, all its actions count as one.
func (l *Log) Refused(ctx context.Context, r Record) error {
	r.Kind = KindRefused
	if !r.Uncharged && l.Admit(r.Caller) != nil {
		r.Action = "*"
		rule, _, _ := strings.Cut(r.Rule, ":")
		r.Rule = rule + ":*"
	}
	input, k := r.Input, refusalKind{r.Caller, r.Action, r.Rule}
	r.Input, r.InputBytes = nil, len(input)
	if l.refusals.count(k, r) {
		return nil
	}
	if len(input) > 0 {
		sum := sha256.Sum256(input)
		r.InputHash = hex.EncodeToString(sum[:])
	}
	r.Count = 1
	err := l.commit(ctx, l.sanitize(r))
	if err != nil {
		l.refusals.count(k, r) // written with the next batch
	}
	return err
}

// count counts a refusal. It returns false for the first one of its kind.
func (s *refusals) count(k refusalKind, r Record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.kinds[k]
	if e == nil {
		s.kinds[k] = &refused{}
		return false
	}
	e.count++
	e.bytes += r.InputBytes
	r.Call, r.InputHash = "", ""
	e.record = r
	return true
}

// due returns the counted refusals and drops kinds without new ones.
func (s *refusals) due() (all []Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, e := range s.kinds {
		if e.count == 0 {
			delete(s.kinds, k)
			continue
		}
		r := e.record
		r.Count, r.InputBytes = e.count, e.bytes
		all = append(all, r)
	}
	return all
}

// written subtracts what was written.
func (s *refusals) written(all []Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range all {
		e := s.kinds[refusalKind{r.Caller, r.Action, r.Rule}]
		e.count -= r.Count
		e.bytes -= r.InputBytes
	}
}

// writeRefusals records the refusals counted since the last call. Only the writer calls it. If it
// fails, the counts stay.
func (l *Log) writeRefusals(ctx context.Context) error {
	all := l.refusals.due()
	items := make([]*queueItem, 0, len(all))
	for _, r := range all {
		body, err := encode(l.sanitize(r))
		if err != nil {
			return err
		}
		items = append(items, l.charge(r, &queueItem{body: body}))
	}
	if err := l.append(ctx, items); err != nil {
		for _, it := range items {
			l.refund(it)
		}
		l.log.Error("failed to record refused calls; will retry", "kinds", len(all), "error", err)
		return err
	}
	l.refusals.written(all)
	return nil
}
