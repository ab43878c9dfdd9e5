package audit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// recordCost is the approximate disk space of a record beside its text, in bytes: hashes and
// indexes.
const recordCost = 256

// shareDay is the format of the counted day, in UTC.
const shareDay = "2006-01-02"

// ShareError reports that a caller used up its share of the log for this day (UTC). It is of class
// ResourceExhausted.
type ShareError struct {
	Limit, Used int64 // bytes
	// RetryAfter is the rest of the day.
	RetryAfter time.Duration
}

// Error implements error.
func (e *ShareError) Error() string {
	return fmt.Sprintf("audit share used up: %d of %d bytes of records in a day: try again in %s", e.Used, e.Limit,
		e.RetryAfter.Round(time.Second))
}

// Unwrap returns the errdefs class.
func (e *ShareError) Unwrap() error { return errdefs.ErrResourceExhausted }

// shares counts the bytes of one day's records by caller. Its methods may be called concurrently.
type shares struct {
	limit int64 // 0: unlimited
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

// rollOver starts a new day if there is one. It ignores a clock that was set back.
func (s *shares) rollOver() {
	if day := s.now().UTC().Format(shareDay); day > s.day {
		s.day, s.bytes = day, map[string]int64{}
	}
}

// charge counts a record of a caller and returns the day that it counts for.
func (s *shares) charge(caller string, n int64) (day string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rollOver()
	s.bytes[caller] += n
	return s.day
}

// refund reverses the charge for a record that was not written.
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
	s.rollOver()
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

// Admit returns a *ShareError if the caller has recorded Options.CallerDailyBytes today. It blocks
// nothing by itself: running calls are still recorded. Records of the service and of operators do
// not count.
func (l *Log) Admit(caller string) error { return l.shares.admit(caller, l.shares.limit) }

// AdmitConnection is Admit for a sandbox's connection. Connections may use only the first half of a
// share, so that they cannot block the caller's calls.
func (l *Log) AdmitConnection(caller string) error { return l.shares.admit(caller, l.shares.limit/2) }
