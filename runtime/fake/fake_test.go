package fake_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const owner = "owner-0001"

func spec(id string) runtime.Spec {
	return runtime.Spec{ID: id, Owner: owner, Template: "default", Build: "b1", Image: runtime.Image{ID: "sha256:1"}}
}

func create(t *testing.T, d runtime.Driver, id string) runtime.Sandbox {
	t.Helper()
	s, err := d.Create(t.Context(), spec(id))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(context.Background(), id); err != nil && !errdefs.IsUnavailable(err) {
			t.Error(err) // a test may have closed the driver
		}
	})
	return s
}

func send(t *testing.T, conn net.Conn, kind wire.Kind, payload []byte) {
	t.Helper()
	frame := binary.BigEndian.AppendUint32([]byte{byte(kind)}, uint32(len(payload)))
	if _, err := conn.Write(append(frame, payload...)); err != nil {
		t.Fatal(err)
	}
}

func receive(conn net.Conn) (wire.Kind, []byte, error) {
	var header [5]byte
	if _, err := io.ReadFull(conn, header[:]); err != nil {
		return 0, nil, err
	}
	payload := make([]byte, binary.BigEndian.Uint32(header[1:]))
	_, err := io.ReadFull(conn, payload)
	return wire.Kind(header[0]), payload, err
}

func call(t *testing.T, s runtime.Sandbox, op wire.Op, body any) net.Conn {
	t.Helper()
	conn, err := s.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	request, err := json.Marshal(wire.Request{Version: wire.Version, Op: op, Body: raw})
	if err != nil {
		t.Fatal(err)
	}
	send(t, conn, wire.KindRequest, request)
	return conn
}

// finish reads up to the last frame and returns it with the standard output before it.
func finish(t *testing.T, conn net.Conn) (kind wire.Kind, last []byte, stdout string) {
	t.Helper()
	for {
		kind, payload, err := receive(conn)
		if err != nil {
			t.Fatal(err)
		}
		switch kind {
		case wire.KindStdout:
			stdout += string(payload)
		case wire.KindReply, wire.KindFailure:
			return kind, payload, stdout
		default: // not output
		}
	}
}

func result(t *testing.T, conn net.Conn) (runtime.Result, string) {
	t.Helper()
	kind, last, stdout := finish(t, conn)
	var r runtime.Result
	if err := json.Unmarshal(last, &r); kind != wire.KindReply || err != nil {
		t.Fatalf("last frame = %c %s, %v; want a reply with a result", kind, last, err)
	}
	return r, stdout
}

func TestSecondDriverAdopts(t *testing.T) {
	host := &fake.Host{}
	first := fake.New(fake.Options{Host: host})
	a := create(t, first, "sandbox-a")
	create(t, first, "sandbox-b")
	if err := a.Release(); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Destroy(t.Context()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Destroy after Release: %v, want FailedPrecondition", err)
	}
	if _, err := first.List(t.Context(), owner); !errdefs.IsUnavailable(err) {
		t.Errorf("List on a closed driver: %v, want Unavailable", err)
	}
	host.Kill("sandbox-b")

	second := fake.New(fake.Options{Host: host})
	found, err := second.List(t.Context(), owner)
	want := []runtime.Found{
		{ID: "sandbox-a", Template: "default", Build: "b1", Running: true},
		{ID: "sandbox-b", Template: "default", Build: "b1"},
	}
	if err != nil || !slices.Equal(found, want) {
		t.Errorf("List = %v, %v; want %v and no error", found, err, want)
	}
	if found, err := second.List(t.Context(), "someone-else"); err != nil || len(found) != 0 {
		t.Errorf("List of another owner = %v, %v; want none and no error", found, err)
	}
	if _, err := second.Adopt(t.Context(), "sandbox-b"); !errdefs.IsNotFound(err) {
		t.Errorf("Adopt of an ended sandbox: %v, want NotFound", err)
	}
	adopted, err := second.Adopt(t.Context(), "sandbox-a")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := adopted.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := second.Remove(t.Context(), "sandbox-b"); err != nil {
			t.Fatal(err)
		}
	}
	if ids := host.IDs(); len(ids) != 0 {
		t.Errorf("sandboxes left = %v, want none", ids)
	}
}

func TestHooksDelayAndFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := fake.New(fake.Options{})
		d.Host().SetHook(fake.Delay(3*time.Second, fake.OpCreate))
		began := time.Now()
		s, err := d.Create(t.Context(), spec("sandbox-a"))
		if err != nil || time.Since(began) != 3*time.Second {
			t.Fatalf("Create: %v after %v, want no error after 3s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := d.Create(ctx, spec("sandbox-b")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Create past its deadline: %v, want %v", err, context.DeadlineExceeded)
		}
		boom := errors.New("boom")
		d.Host().SetHook(fake.Fail(boom, 1, fake.OpCreated, fake.OpDestroy))
		if _, err := d.Create(t.Context(), spec("sandbox-c")); !errors.Is(err, boom) {
			t.Errorf("Create: %v, want %v", err, boom)
		}
		if ids := d.Host().IDs(); !slices.Equal(ids, []string{"sandbox-a", "sandbox-c"}) {
			t.Errorf("IDs = %v, want sandbox-a and the half-made sandbox-c", ids)
		}
		if err := s.Destroy(t.Context()); !errors.Is(err, boom) {
			t.Errorf("Destroy: %v, want %v", err, boom)
		}
		for _, id := range d.Host().IDs() {
			if err := d.Remove(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestGuestRunsCommands(t *testing.T) {
	s := create(t, fake.New(fake.Options{}), "sandbox-a")
	for _, c := range []struct {
		argv   []string
		code   int
		stdout string
	}{
		{[]string{"/bin/true"}, 0, ""},
		{[]string{"false"}, 1, ""},
		{[]string{"echo", "a", "b"}, 0, "a b\n"},
		{[]string{"/bin/bash", "-lc", "echo a"}, 0, "a\n"},
		{[]string{"sh", "-c", "exit 7"}, 7, ""},
		{[]string{"nonsense"}, 127, ""},
	} {
		r, stdout := result(t, call(t, s, wire.OpExec, wire.Command{ID: "1", Argv: c.argv}))
		if r.Ending != runtime.Exited || r.ExitCode != c.code || stdout != c.stdout {
			t.Errorf("%q = %+v, %q; want code %d, output %q", c.argv, r, stdout, c.code, c.stdout)
		}
	}
	conn := call(t, s, wire.OpExec, wire.Command{ID: "2", Argv: []string{"cat"}, Stdin: true})
	if kind, _, err := receive(conn); kind != wire.KindStarted || err != nil {
		t.Fatalf("first frame = %c, %v; want %c and no error", kind, err, wire.KindStarted)
	}
	send(t, conn, wire.KindStdin, []byte("input"))
	if _, payload, err := receive(conn); string(payload) != "input" || err != nil {
		t.Fatalf("output = %q, %v; want %q and no error", payload, err, "input")
	}
	send(t, conn, wire.KindEOF, nil)
	if r, _ := result(t, conn); r.Ending != runtime.Exited {
		t.Errorf("cat: %+v, want %s", r, runtime.Exited)
	}
}

func TestGuestEndsCommands(t *testing.T) {
	s := create(t, fake.New(fake.Options{}), "sandbox-a")
	r, _ := result(t, call(t, s, wire.OpExec,
		wire.Command{ID: "1", Argv: []string{"sleep", "600"}, Timeout: time.Millisecond}))
	if r.Ending != runtime.Timeout {
		t.Errorf("command past its timeout: %+v, want %s", r, runtime.Timeout)
	}
	conn := call(t, s, wire.OpExec, wire.Command{ID: "2", Argv: []string{"cat"}, Stdin: true})
	if _, _, err := receive(conn); err != nil {
		t.Fatal(err)
	}
	send(t, conn, wire.KindSignal, []byte(`{"number":15}`))
	if r, _ := result(t, conn); r.Ending != runtime.Signalled {
		t.Errorf("command after a signal: %+v, want %s", r, runtime.Signalled)
	}
	conn = call(t, s, wire.OpExec, wire.Command{ID: "3", Argv: []string{"lost"}})
	for {
		kind, _, err := receive(conn)
		if err != nil {
			break
		}
		if kind == wire.KindReply {
			t.Fatal("lost stream has a result, want none")
		}
	}
}

func TestClaimIsExclusive(t *testing.T) {
	s := create(t, fake.New(fake.Options{}), "sandbox-a")
	for _, c := range []struct {
		lease string
		kind  wire.Kind
	}{{"one", wire.KindReply}, {"one", wire.KindReply}, {"two", wire.KindFailure}} {
		if kind, last, _ := finish(t, call(t, s, wire.OpClaim, wire.Claim{Lease: c.lease})); kind != c.kind {
			t.Errorf("claim by %s = %c %s, want %c", c.lease, kind, last, c.kind)
		}
	}
	_, last, _ := finish(t, call(t, s, wire.OpPing, nil))
	var pong wire.Pong
	if err := json.Unmarshal(last, &pong); err != nil || !pong.Claimed || pong.Version != wire.Version {
		t.Errorf("ping = %s, %v; want claimed, version %d and no error", last, err, wire.Version)
	}
	if kind, _, _ := finish(t, call(t, s, wire.OpShells, nil)); kind != wire.KindFailure {
		t.Errorf("answer to an unknown operation = %c, want %c", kind, wire.KindFailure)
	}
	if kind, _, _ := finish(t, call(t, s, wire.OpEnd, nil)); kind != wire.KindReply {
		t.Errorf("answer to end = %c, want %c", kind, wire.KindReply)
	}
	<-s.Done()
	if _, err := s.Open(t.Context()); !errdefs.IsUnavailable(err) {
		t.Errorf("Open after the end: %v, want Unavailable", err)
	}
}

func TestDeathCutsStreamsAndBindings(t *testing.T) {
	d := fake.New(fake.Options{Serve: func(ctx context.Context, _ string, _ net.Conn) { <-ctx.Done() }})
	s := create(t, d, "sandbox-a")
	b := runtime.Binding{Source: "/srv/w", ReadOnly: true}
	if err := s.Bind(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if got, ok := d.Host().Bound("sandbox-a"); !ok || got != b {
		t.Errorf("Bound = %v, %v; want %v, true", got, ok, b)
	}
	if err := s.Bind(t.Context(), b); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("second Bind: %v, want FailedPrecondition", err)
	}
	conn, err := s.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !d.Host().Vanish("sandbox-a") {
		t.Fatal("Vanish = false, want true for a sandbox that exists")
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("Read after Vanish succeeded, want error")
	}
	<-s.Done()
	without := fake.New(fake.Options{Capabilities: runtime.Capabilities{runtime.CapLateBind: "it cannot"}})
	if err := create(t, without, "sandbox-b").Bind(t.Context(), b); !errdefs.IsNotImplemented(err) {
		t.Errorf("Bind without the capability: %v, want NotImplemented", err)
	}
}

func TestBadSpecsAreRefused(t *testing.T) {
	d := fake.New(fake.Options{})
	if _, err := d.Create(t.Context(), runtime.Spec{ID: "x"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Create with a bad spec: %v, want InvalidArgument", err)
	}
	create(t, d, "sandbox-a")
	if _, err := d.Create(t.Context(), spec("sandbox-a")); !errdefs.IsAlreadyExists(err) {
		t.Errorf("Create of the same id: %v, want AlreadyExists", err)
	}
	if err := d.Prepare(t.Context(), runtime.Image{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Prepare of an image without id: %v, want InvalidArgument", err)
	}
	if err := d.Prepare(t.Context(), runtime.Image{ID: "sha256:1"}); err != nil ||
		!slices.Equal(d.Host().Prepared(), []string{"sha256:1"}) {
		t.Errorf("Prepare: %v, prepared %q; want no error and only sha256:1", err, d.Host().Prepared())
	}
}
