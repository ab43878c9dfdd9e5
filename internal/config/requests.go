package config

// Requests limits clients' requests.
type Requests struct {
	// Bodies limits the memory of all request bodies, and CallerBodies that of one caller's.
	Bodies       Size `json:"bodies"`
	CallerBodies Size `json:"caller_bodies"`
}

// leastBodies allows the largest body of any route to be held and decoded, even if it is charged
// twice.
const leastBodies = 56 << 20

func defaultRequests() Requests { return Requests{Bodies: 192 << 20, CallerBodies: 64 << 20} }

func (r Requests) validate() error {
	switch {
	case r.CallerBodies < leastBodies:
		return bad("requests.caller_bodies", r.CallerBodies, "must be at least 56MiB: the largest request must fit")
	case r.Bodies/2 < r.CallerBodies:
		return bad("requests.bodies", r.Bodies, "must be at least twice requests.caller_bodies")
	}
	return nil
}
