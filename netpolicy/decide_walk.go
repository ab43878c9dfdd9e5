package netpolicy

import (
	"iter"
	"net/netip"
	"strings"
)

// matchLevels yields the rules whose host matches, most specific host first. Rules of the same host
// come together. It allocates nothing.
func (r *Rules) matchLevels(a *query) iter.Seq[[]int32] {
	return func(yield func([]int32) bool) {
		if a.addr.IsValid() {
			r.addressLevels(a.addr, yield)
			return
		}
		if level := r.names[a.host]; level != nil && !yield(level) {
			return
		}
		if len(r.below) > 0 {
			for rest, ok := parent(a.host); ok; rest, ok = parent(rest) {
				if level := r.below[rest]; level != nil && !yield(level) {
					return
				}
			}
		}
		if len(r.every) > 0 {
			yield(r.every)
		}
	}
}

// addressLevels yields the rules that match an address. The rules for * come last, because they
// deny addresses too.
func (r *Rules) addressLevels(addr netip.Addr, yield func([]int32) bool) {
	if level := r.addrs[addr]; level != nil && !yield(level) {
		return
	}
	lengths := r.bits6
	if addr.Is4() {
		lengths = r.bits4
	}
	for _, bits := range lengths {
		block, _ := addr.Prefix(bits)
		if level := r.blocks[block]; level != nil && !yield(level) {
			return
		}
	}
	if len(r.every) > 0 {
		yield(r.every)
	}
}

func parent(name string) (string, bool) {
	_, rest, ok := strings.Cut(name, ".")
	return rest, ok
}
