package audit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// recordCost is what a record takes of the disk beside its own text, about: its
// hashes and what it is found by.
const recordCost = 256

// shareDay is the form of the day that is counted, in UTC.
const shareDay = "2006-01-02"

// ShareError says that a caller has used up its share of the log for this day
// (UTC). It is of class ResourceExhausted.
type ShareError struct {
	Limit, Used int64 // bytes
	// RetryAfter is how long the day lasts.
	RetryAfter time.Duration
}

// Error implements error.
func (e *ShareError) Error() string {
	return fmt.Sprintf("audit share used up: %d of %d bytes of records in a day: try again in %s", e.Used, e.Limit, e.RetryAfter.Round(time.Second))
}

// Unwrap returns the errdefs class.
func (e *ShareError) Unwrap() error { return errdefs.ErrResourceExhausted }

// shares counts the bytes of records by caller, for one day. Its methods may be
// called concurrently.
type shares struct {
	limit int64 // 0: none
	now   func() time.Time

	mu    sync.Mutex
	day   string
	bytes map[string]int64
}

func (s *shares) load(ctx context.Context, st Store) (err error) {
	s.day = s.now().UTC().Format(shareDay)
	s.bytes, err = st.Spent(ctx, s.day)
	return err
}

// turn begins a new day. A clock that is set back begins none.
func (s *shares) turn() {
	if day := s.now().UTC().Format(shareDay); day > s.day {
		s.day, s.bytes = day, map[string]int64{}
	}
}

// charge counts a record of a caller, and returns the day that it counts for.
func (s *shares) charge(caller string, n int64) (day string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn()
	s.bytes[caller] += n
	return s.day
}

// refund takes a charge back whose record was not written.
func (s *shares) refund(day, caller string, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if day == s.day {
		s.bytes[caller] -= n
	}
}

func (s *shares) admit(caller string, limit int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn()
	used := s.bytes[caller]
	if s.limit <= 0 || used < limit {
		return nil
	}
	after := time.Hour
	if day, err := time.Parse(shareDay, s.day); err == nil {
		after = day.AddDate(0, 0, 1).Sub(s.now())
	}
	return &ShareError{Limit: limit, Used: used, RetryAfter: after}
}

// Admit returns a *ShareError if the caller has recorded as much today as
// Options.CallerDailyBytes allows. It refuses nothing itself: what is under way
// is still recorded, and records of the service and of operators do not count.
func (l *Log) Admit(caller string) error { return l.shares.admit(caller, l.shares.limit) }

// AdmitConnection is Admit for a connection of a sandbox. Connections have room in
// the first half of a share alone, so that they never keep a caller from calling.
func (l *Log) AdmitConnection(caller string) error { return l.shares.admit(caller, l.shares.limit/2) }
