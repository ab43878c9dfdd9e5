package config

// Requests bounds the requests of clients.
type Requests struct {
	// Bodies is the memory that bodies of requests take together, CallerBodies what those of one
	// caller take.
	Bodies       Size `json:"bodies"`
	CallerBodies Size `json:"caller_bodies"`
}

// leastBodies lets the largest body that a route takes be held and decoded, also where it is charged
// twice.
const leastBodies = 56 << 20

func defaultRequests() Requests { return Requests{Bodies: 192 << 20, CallerBodies: 64 << 20} }

func (r Requests) validate() error {
	switch {
	case r.CallerBodies < leastBodies:
		return bad("requests.caller_bodies", r.CallerBodies, "must be at least 56MiB: the largest request has to fit")
	case r.Bodies/2 < r.CallerBodies:
		return bad("requests.bodies", r.Bodies, "must be at least twice requests.caller_bodies")
	}
	return nil
}
