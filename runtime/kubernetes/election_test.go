package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// leaseServer answers as an API server does for one Lease. Connections are in memory, so that its
// time is that of a synctest bubble.
type leaseServer struct {
	mu      sync.Mutex
	lease   *coordinationv1.Lease // nil: there is none
	version int
	down    bool
	denied  string // a verb
	// late is how long after an update, which is the last one, its answer comes.
	late    time.Duration
	updated time.Time
	gets    int
	hung    chan struct{} // if not nil, answers come when it is closed, whatever the context
}

func (s *leaseServer) set(change func(*coordinationv1.Lease)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil {
		s.lease = &coordinationv1.Lease{
			TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
			ObjectMeta: metav1.ObjectMeta{Name: "orchestrator-o1", Namespace: "sandboxes"},
		}
	}
	change(s.lease)
	s.store(s.lease)
}

func (s *leaseServer) store(l *coordinationv1.Lease) {
	s.updated = time.Now()
	s.version++
	l.ResourceVersion = strconv.Itoa(s.version)
	s.lease = l
}

func (s *leaseServer) holder() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return holderOf(s.lease)
}

// RoundTrip implements http.RoundTripper.
func (s *leaseServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	hung := s.hung
	s.mu.Unlock()
	if hung != nil {
		<-hung
	}
	resp, late, err := s.serve(r)
	select {
	case <-time.After(late):
		return resp, err
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// serve answers a request, and returns how late the answer comes.
func (s *leaseServer) serve(r *http.Request) (resp *http.Response, late time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		if r.Method == http.MethodGet {
			s.gets++
		}
		return nil, 0, io.ErrUnexpectedEOF
	}
	if s.late > 0 && r.Method == http.MethodPut {
		s.down, late = true, s.late
	}
	resp, err = s.change(r)
	return resp, late, err
}

func (s *leaseServer) change(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	if strings.HasSuffix(r.URL.Path, "selfsubjectaccessreviews") {
		var review authorizationv1.SelfSubjectAccessReview
		if err := json.Unmarshal(body, &review); err != nil {
			return nil, err
		}
		review.Status.Allowed = review.Spec.ResourceAttributes.Verb != s.denied
		return answer(http.StatusCreated, review), nil
	}
	failure := func(code int32, reason metav1.StatusReason) *http.Response {
		return answer(int(code), metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: code, Reason: reason,
		})
	}
	var sent coordinationv1.Lease
	if len(body) > 0 {
		if err := json.Unmarshal(body, &sent); err != nil {
			return nil, err
		}
	}
	sent.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
	switch {
	case r.Method == http.MethodPost && s.lease != nil:
		return failure(http.StatusConflict, metav1.StatusReasonAlreadyExists), nil
	case r.Method == http.MethodPost:
		s.store(&sent)
	case r.Method == http.MethodGet && s.lease != nil:
		s.gets++
	case s.lease == nil:
		return failure(http.StatusNotFound, metav1.StatusReasonNotFound), nil
	case r.Method == http.MethodPut && sent.ResourceVersion != s.lease.ResourceVersion:
		return failure(http.StatusConflict, metav1.StatusReasonConflict), nil
	case r.Method == http.MethodPut:
		s.store(&sent)
	}
	return answer(http.StatusOK, s.lease), nil
}

func answer(code int, body any) *http.Response {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(string(text))),
	}
}

// candidate is a Candidate whose events are recorded.
type candidate struct {
	*Candidate
	lost chan error
}

func newTestCandidate(t *testing.T, s *leaseServer, place string) *candidate {
	t.Helper()
	c := &candidate{lost: make(chan error, 1)}
	var err error
	c.Candidate, err = newCandidate(t.Context(), &rest.Config{Host: "http://cluster", Transport: s}, ElectionOptions{
		Namespace: "sandboxes", Owner: "o1", Place: place, Lost: func(err error) { c.lost <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// acquire acquires the Lease and returns the epoch and how long that took.
func (c *candidate) acquire(t *testing.T, waiting func(string)) (int64, time.Duration) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	epoch, err := c.Acquire(ctx, waiting)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return epoch, time.Since(began)
}

func none(string) {}

// TestClockSkewDoesNotMakeTwoActive checks that a candidate judges a holder by changes that it sees
// itself, whatever the holder's clock says.
func TestClockSkewDoesNotMakeTwoActive(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{-time.Minute, 0, time.Minute} {
		t.Run(skew.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const theirs = maxEpoch / 2 // later than the time
				s := &leaseServer{}
				renew := func() {
					s.set(func(l *coordinationv1.Lease) {
						holder, seconds, now := "other", int32(leaseTime/time.Second), metav1.NewMicroTime(time.Now().Add(skew))
						l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &holder, &seconds, &now
						l.Annotations = map[string]string{annotationEpoch: strconv.Itoa(theirs)}
					})
				}
				const lives, period = 2 * time.Minute, 6 * time.Second
				var last time.Time
				renewed := make(chan struct{})
				go func() { // received from below
					defer close(renewed)
					for end := time.Now().Add(lives); time.Now().Before(end); time.Sleep(period) {
						renew()
						last = time.Now()
					}
				}()
				synctest.Wait()
				seen := make(chan string, 1)
				epoch, took := newTestCandidate(t, s, "").acquire(t, func(holder string) { seen <- holder })
				<-renewed
				// It may see that renewal one retry late, and the end of the Lease another one.
				const atMost = leaseTime + 2*2*retryTime
				if after := time.Since(last); after < leaseTime || after > atMost {
					t.Errorf("acquired %v after the holder's last renewal, want %v to %v", after, leaseTime, atMost)
				}
				if holder := <-seen; holder != "other" || epoch != theirs+1 || took < lives-period {
					t.Errorf("Acquire = epoch %d after %v, holder %q; want %d after %v, holder other",
						epoch, took, holder, theirs+1, lives)
				}
			})
		})
	}
}

func TestLeaseIsHandedOverAtClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &leaseServer{}
		first, second := newTestCandidate(t, s, ""), newTestCandidate(t, s, "")
		before, took := first.acquire(t, none)
		if took > 0 {
			t.Errorf("Acquire without a holder took %v, want 0", took)
		}
		go func() {
			time.Sleep(time.Minute)
			first.Close()
		}()
		after, took := second.acquire(t, none)
		if want := time.Now().Unix(); after != want || after <= before || took < time.Minute || took > time.Minute+3*retryTime {
			t.Errorf("second Acquire = epoch %d after %d, after %v; want %d at the first one's end", after, before, took, want)
		}
		if len(first.lost) > 0 {
			t.Errorf("a candidate that was closed reports %v, want nothing", <-first.lost)
		}
	})
}

// TestHolderThatCannotRenewEndsFirst checks the order: the old holder reports the loss before a new
// one is active, and does not release the Lease.
func TestHolderThatCannotRenewEndsFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &leaseServer{}
		c := newTestCandidate(t, s, "")
		c.acquire(t, none)
		time.Sleep(time.Minute)
		s.mu.Lock()
		s.down = true
		s.mu.Unlock()
		began := time.Now()
		err := <-c.lost
		if took := time.Since(began); took > leaseTime-time.Second || !strings.Contains(err.Error(), "could not be renewed") {
			t.Errorf("lost %v after %v, want a failed renewal before %v", err, took, leaseTime)
		}
		s.mu.Lock()
		s.down = false
		s.mu.Unlock()
		time.Sleep(time.Minute)
		if s.holder() != c.lock.identity {
			t.Errorf("holder = %q, want the Lease left to expire", s.holder())
		}
	})
}

func TestSupersededHolderNoticesAtItsNextRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &leaseServer{}
		c := newTestCandidate(t, s, "")
		c.acquire(t, none)
		s.set(func(l *coordinationv1.Lease) { other := "other"; l.Spec.HolderIdentity = &other })
		began := time.Now()
		err := <-c.lost
		if took := time.Since(began); took > 2*retryTime || !strings.Contains(err.Error(), `"other"`) {
			t.Errorf("lost %v after %v, want the holder's identity within %v", err, took, 2*retryTime)
		}
	})
}

func TestInheritTakesTheLeaseOfAProcessThatHeldTheLock(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		place  string
		locked bool
		want   bool
	}{{"here", true, true}, {"here", false, false}, {"elsewhere", true, false}, {"", true, false}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &leaseServer{}
				first, second := newTestCandidate(t, s, "here"), newTestCandidate(t, s, c.place)
				first.acquire(t, none)
				if c.locked {
					first.Locked()
				}
				time.Sleep(2*retryTime + retryTime/2) // not at the time of a renewal
				if err := second.Inherit(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := s.holder() == ""; got != c.want {
					t.Errorf("Inherit released = %v, want %v", got, c.want)
				}
			})
		})
	}
}

func TestMissingLeasePermissionIsNamed(t *testing.T) {
	t.Parallel()
	s := &leaseServer{denied: "update"}
	_, err := newCandidate(t.Context(), &rest.Config{Host: "http://cluster", Transport: s}, ElectionOptions{Namespace: "sandboxes"})
	if err == nil || !strings.Contains(err.Error(), "update leases") {
		t.Errorf("newCandidate = %v, want the missing verb", err)
	}
}
