package config

import "net/url"

// Tracing configures the export of traces by OTLP.
type Tracing struct {
	// Endpoint is "http://HOST:PORT" of a collector, or with TLS "https://HOST:PORT". "" means no
	// traces.
	Endpoint string `json:"endpoint"`
	// Protocol is "grpc" or "http".
	Protocol string `json:"protocol"`
	// Ratio is the share of traces that begin here and are exported, from 0 to 1. A trace that the
	// client began is exported if the client exports it.
	Ratio float64 `json:"ratio"`
}

func defaultTracing() Tracing { return Tracing{Protocol: "grpc", Ratio: 1} }

func (t Tracing) validate() error {
	if t.Endpoint != "" {
		u, err := url.Parse(t.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Port() == "" || u.Path != "" || u.User != nil ||
			u.RawQuery != "" || u.Fragment != "" {
			return bad("tracing.endpoint", t.Endpoint, "must be http://HOST:PORT or https://HOST:PORT")
		}
	}
	switch {
	case t.Protocol != "grpc" && t.Protocol != "http":
		return bad("tracing.protocol", t.Protocol, "must be grpc or http")
	case !(t.Ratio >= 0 && t.Ratio <= 1):
		return bad("tracing.ratio", t.Ratio, "must be from 0 to 1")
	}
	return nil
}
