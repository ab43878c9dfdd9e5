package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"
)

// refusals counts calls that a quota or a rate refused. Its methods may be called
// concurrently.
type refusals struct {
	mu    sync.Mutex
	kinds map[refusalKind]*refused
}

// refusalKind is what refusals have in common that are one record.
type refusalKind struct{ caller, action, rule string }

// refused is what was counted of a kind since its last record.
type refused struct {
	record Record // the last one, without its call
	count  int64
	bytes  int
}

// Refused records a call that did not come to be one: r.Rule names the quota or
// the rate that refused it. Of r.Input there are only size and hash in the record.
// The first refusal of a caller for an action by a rule is written before Refused
// returns. Those that follow are counted, and written as one record a minute, and
// at Close; a killed process loses that count. Once the caller's share is used up,
// all its actions count as one.
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
	err := l.commit(ctx, l.clean(r))
	if err != nil {
		l.refusals.count(k, r) // it is written with the next ones
	}
	return err
}

// count counts a refusal, or reports that it is the first one of its kind.
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

// due returns what was counted, and forgets kinds that did not come again.
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

// written takes off what was written.
func (s *refusals) written(all []Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range all {
		e := s.kinds[refusalKind{r.Caller, r.Action, r.Rule}]
		e.count -= r.Count
		e.bytes -= r.InputBytes
	}
}

// writeRefusals records what was counted since the last time. It is for the
// writer. What cannot be written is counted on.
func (l *Log) writeRefusals() error {
	all := l.refusals.due()
	items := make([]*item, 0, len(all))
	for _, r := range all {
		body, err := encode(l.clean(r))
		if err != nil {
			return err
		}
		items = append(items, l.charged(r, &item{body: body}))
	}
	if err := l.append(items); err != nil {
		for _, it := range items {
			l.refund(it)
		}
		l.log.Error("failed to record refused calls; will retry", "kinds", len(all), "error", err)
		return err
	}
	l.refusals.written(all)
	return nil
}
