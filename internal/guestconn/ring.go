package guestconn

// ring holds bytes in order. It grows up to lineWindow.
type ring struct {
	b        []byte
	start, n int
}

// smallRing is the smallest capacity.
const smallRing = 4 << 10

func (r *ring) add(p []byte) {
	if need := r.n + len(p); need > len(r.b) {
		size := max(len(r.b), smallRing)
		for size < need {
			size *= 2
		}
		bigger := make([]byte, size)
		r.copyFrom(bigger, 0)
		r.b, r.start = bigger, 0
	}
	end := (r.start + r.n) % len(r.b)
	m := copy(r.b[end:], p)
	copy(r.b, p[m:])
	r.n += len(p)
}

// copyFrom copies the bytes from an offset.
func (r *ring) copyFrom(dst []byte, offset int) int {
	dst = dst[:min(len(dst), r.n-offset)]
	if len(dst) == 0 {
		return 0
	}
	m := copy(dst, r.b[(r.start+offset)%len(r.b):])
	return m + copy(dst[m:], r.b)
}

// drop removes the first k bytes.
func (r *ring) drop(k int) {
	if k == 0 {
		return
	}
	r.start = (r.start + k) % len(r.b)
	r.n -= k
}

// shrink releases the memory of an empty ring.
func (r *ring) shrink() {
	if r.n == 0 {
		r.b = nil
	}
}
