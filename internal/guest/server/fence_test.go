package server

import (
	"errors"
	"io"
	"net"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

func TestFenceEndsRequestsOfOlderHostFirst(t *testing.T) {
	t.Parallel()
	var f fence
	host, conn := net.Pipe()
	defer host.Close()
	leave, err := f.enter(wire.Request{Op: wire.OpExec, Epoch: 1}, conn, func() {})
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan struct{})
	go func() { // the request ends when its stream does
		_, _ = conn.Read(make([]byte, 1))
		close(left)
		leave()
	}()
	cuts := 0
	newer, err := f.enter(wire.Request{Op: wire.OpPing, Epoch: 2}, conn, func() { cuts++ })
	if err != nil {
		t.Fatalf("enter of a newer host: %v", err)
	}
	defer newer()
	select {
	case <-left:
	default:
		t.Error("the newer host was admitted before the older request ended")
	}
	if _, err := host.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("Read of the older host = %v, want EOF", err)
	}
	again, err := f.enter(wire.Request{Op: wire.OpClaim, Epoch: 2}, conn, func() { cuts++ })
	if err != nil || cuts != 1 {
		t.Fatalf("second enter of the newer host = %v after %d cuts, want nil and one cut", err, cuts)
	}
	again()
}

func TestFenceRefusesOlderHost(t *testing.T) {
	t.Parallel()
	var f fence
	leave, err := f.enter(wire.Request{Op: wire.OpPing, Epoch: 5}, nil, func() {})
	if err != nil {
		t.Fatal(err)
	}
	leave()
	for _, req := range []wire.Request{
		{Op: wire.OpPing, Epoch: 4}, {Op: wire.OpClaim, Epoch: 4}, {Op: wire.OpExec}, {Op: wire.OpEnd, Epoch: 1},
	} {
		_, err := f.enter(req, nil, func() {})
		if e, ok := errors.AsType[*wire.Failure](err); !ok || e.Code != wire.FailedPrecondition || e.Field != wire.FieldEpoch {
			t.Errorf("enter(%s of epoch %d) = %v, want FailedPrecondition of field epoch", req.Op, req.Epoch, err)
		}
	}
	if _, err := f.enter(wire.Request{Op: wire.OpPing}, nil, func() {}); err != nil {
		t.Errorf("enter of a bridge's ping = %v, want nil", err)
	}
}
