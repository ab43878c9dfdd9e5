package fake

import (
	"errors"
	"net"
	"time"
)

// duplex is one end of an in-memory stream whose directions can be closed separately, as those of a
// real sandbox.
type duplex struct {
	in, out net.Conn
}

func newDuplex() (host, guest *duplex) {
	down, downEnd := net.Pipe()
	up, upEnd := net.Pipe()
	return &duplex{in: upEnd, out: down}, &duplex{in: downEnd, out: up}
}

func (d *duplex) Read(b []byte) (int, error)         { return d.in.Read(b) }
func (d *duplex) Write(b []byte) (int, error)        { return d.out.Write(b) }
func (d *duplex) Close() error                       { return errors.Join(d.in.Close(), d.out.Close()) }
func (d *duplex) CloseWrite() error                  { return d.out.Close() }
func (d *duplex) LocalAddr() net.Addr                { return d.in.LocalAddr() }
func (d *duplex) RemoteAddr() net.Addr               { return d.in.RemoteAddr() }
func (d *duplex) SetReadDeadline(t time.Time) error  { return d.in.SetReadDeadline(t) }
func (d *duplex) SetWriteDeadline(t time.Time) error { return d.out.SetWriteDeadline(t) }
func (d *duplex) SetDeadline(t time.Time) error {
	return errors.Join(d.SetReadDeadline(t), d.SetWriteDeadline(t))
}
