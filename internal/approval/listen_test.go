package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// listen starts a listener and returns its events.
func listen(t *testing.T, w *world, caller string) <-chan Event {
	t.Helper()
	events, ended := make(chan Event, 100), make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		ended <- w.Subscribe(ctx, caller, func(e Event) error { events <- e; return nil })
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return events
}

func TestSubscribeSendsCallersEvents(t *testing.T) {
	w := newWorld(t, Options{})
	before := w.want(t, call("before", prompts(t)), OutcomeAsked)
	all := listen(t, w, "")
	anns := listen(t, w, "ann")
	beas := listen(t, w, "bea")
	expect := func(name string, from <-chan Event, kind, id string) {
		t.Helper()
		e := <-from
		if e.Type != kind || e.Request.ID != id {
			t.Fatalf("%s heard %s %s, want %s %s", name, e.Type, e.Request.ID, kind, id)
		}
	}
	expect("all", all, "asked", before.Request.ID)
	expect("ann", anns, "asked", before.Request.ID)
	for listening := 0; listening < 3; time.Sleep(time.Millisecond) { // bea has no event yet
		w.mu.Lock()
		listening = len(w.listeners)
		w.mu.Unlock()
	}
	a := call("a", prompts(t))
	a.Caller = "bea"
	d := w.want(t, a, OutcomeAsked)
	w.answer(t, d.Request.ID, Answer{Action: AnswerEscalate, To: "boss"})
	w.answer(t, d.Request.ID, Answer{Action: AnswerDeny})
	w.answer(t, d.Request.ID, Answer{Action: AnswerDeny}) // received once
	for name, c := range map[string]<-chan Event{"all": all, "bea": beas} {
		for _, kind := range []string{"asked", "escalated", "decided"} {
			expect(name, c, kind, d.Request.ID)
		}
	}
	if err := w.Abandon(t.Context(), before.Request.ID); err != nil {
		t.Fatal(err)
	}
	expect("ann", anns, "decided", before.Request.ID)
	expect("all", all, "decided", before.Request.ID)
	select {
	case e := <-beas:
		t.Fatalf("bea got %+v of ann, want no event", e)
	default:
	}
}

func TestSubscribeSendsPendingOldestFirst(t *testing.T) {
	w := newWorld(t, Options{})
	want := make([]string, 0, 20)
	for i := range 20 {
		w.clock = w.clock.Add(time.Second)
		want = append(want, w.want(t, call(key(i), prompts(t)), OutcomeAsked).Request.ID)
	}
	events := listen(t, w, "")
	got := make([]string, 0, len(want))
	for range want {
		got = append(got, (<-events).Request.ID)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("pending requests %v, want %v", got, want)
	}
}

func TestSlowListenerIsDropped(t *testing.T) {
	w := newWorld(t, Options{MaxPendingPerCaller: 5000})
	first := w.want(t, call("first", prompts(t)), OutcomeAsked)
	entered, leave := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- w.Subscribe(context.Background(), "", func(e Event) error {
			if e.Request.ID == first.Request.ID {
				close(entered)
				<-leave
			}
			return nil
		})
	}()
	<-entered
	for range listenBuffer + 1 {
		w.mu.Lock()
		w.publish("asked", Request{ID: "other", Caller: "ann"})
		w.mu.Unlock()
	}
	close(leave)
	if err := <-ended; !errors.Is(err, errdefs.ErrResourceExhausted) {
		t.Fatalf("Subscribe of a slow listener: %v, want ResourceExhausted", err)
	}
	if len(w.listeners) != 0 {
		t.Fatalf("%d listeners are left, want 0", len(w.listeners))
	}
}

func TestIdleListenerHoldsNoQueue(t *testing.T) {
	w := newWorld(t, Options{})
	events := listen(t, w, "")
	w.want(t, call("a", prompts(t)), OutcomeAsked)
	<-events
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.listeners {
		if got := cap(l.events); got > 16 {
			t.Errorf("the queue of an idle listener has room for %d events, want at most 16", got)
		}
	}
}

func TestSubscribeReturnsSinkError(t *testing.T) {
	w := newWorld(t, Options{})
	w.want(t, call("a", prompts(t)), OutcomeAsked)
	broken := errors.New("the connection broke")
	if err := w.Subscribe(t.Context(), "", func(Event) error { return broken }); !errors.Is(err, broken) {
		t.Fatalf("Subscribe: %v, want %v", err, broken)
	}
	if len(w.listeners) != 0 {
		t.Fatalf("%d listeners are left, want 0", len(w.listeners))
	}
}

// full returns a gate with ten thousand pending requests.
func full(b *testing.B) *world {
	b.Helper()
	const n = 10_000
	w := newWorld(b, Options{MaxPending: n + 1_000_000, MaxPendingPerCaller: n + 1_000_000})
	r := prompts(b)
	for i := range n {
		a := call(key(i), r)
		a.Caller = fmt.Sprintf("caller%d", i%100)
		w.want(b, a, OutcomeAsked)
	}
	return w
}

func BenchmarkAskWhileTenThousandWait(b *testing.B) {
	w := full(b)
	a := call("", prompts(b))
	a.Session = ""
	b.ReportAllocs()
	for b.Loop() {
		if d, err := w.Decide(b.Context(), a); err != nil || d.Outcome != OutcomeAsked {
			b.Fatalf("Decide = %+v, %v; want asked", d, err)
		}
	}
}

func BenchmarkFindRequestByKeyAmongTenThousand(b *testing.B) {
	w := full(b)
	a := call("k500", prompts(b))
	a.Caller = "caller0"
	for b.Loop() {
		if d, err := w.Decide(b.Context(), a); err != nil || d.Outcome != OutcomeAsked {
			b.Fatalf("Decide = %+v, %v; want asked", d, err)
		}
	}
}

func BenchmarkListOfOneCallerAmongTenThousand(b *testing.B) {
	w := full(b)
	for b.Loop() {
		if l, err := w.List(b.Context(), Filter{Caller: "caller7", State: Pending}); err != nil || len(l) != 100 {
			b.Fatalf("List = %d requests, %v; want 100", len(l), err)
		}
	}
}

func BenchmarkListThousandOfTenThousand(b *testing.B) {
	w := full(b)
	for b.Loop() {
		if l, err := w.List(b.Context(), Filter{State: Pending}); err != nil || len(l) != MaxList {
			b.Fatalf("List = %d requests, %v; want %d", len(l), err, MaxList)
		}
	}
}

func BenchmarkAnswerToListener(b *testing.B) {
	w := newWorld(b, Options{})
	heard := make(chan struct{})
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() {
		ended <- w.Subscribe(ctx, "", func(Event) error { heard <- struct{}{}; return nil })
	}()
	for {
		w.mu.Lock()
		n := len(w.listeners)
		w.mu.Unlock()
		if n == 1 {
			break
		}
	}
	r := Request{ID: "a", Caller: "ann"}
	b.ReportAllocs()
	for b.Loop() {
		w.mu.Lock()
		w.publish("decided", r)
		w.mu.Unlock()
		<-heard
	}
	stop()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}
