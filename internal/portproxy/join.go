package portproxy

import (
	"io"
	"net"
	"sync"
)

// Join copies bytes in both directions until both have ended. It sends early to inside first. When
// one direction ends, the other continues.
func Join(outside, inside net.Conn, early []byte) {
	one := func(dst, src net.Conn, early []byte) {
		var err error
		if len(early) > 0 {
			_, err = dst.Write(early)
		}
		if err == nil {
			_, err = io.Copy(dst, src)
		}
		if err != nil || !endWriting(dst) {
			outside.Close()
			inside.Close()
		}
	}
	var both sync.WaitGroup
	both.Go(func() { one(inside, outside, early) })
	both.Go(func() { one(outside, inside, nil) })
	both.Wait()
}

// endWriting closes the write direction and reports whether that was possible.
func endWriting(c net.Conn) bool {
	half, ok := c.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}
