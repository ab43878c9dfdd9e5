package config

import "strings"

// Metrics configures metrics. Operators can always read them at GET /metrics of Listen.
type Metrics struct {
	// Listen is "HOST:PORT" of a separate listener for metrics only, or "". An address other than
	// loopback requires TokenFile, and TLS or AllowRemote.
	Listen string `json:"listen"`
	// TokenFile contains a token that only this listener accepts, or is "": then it needs none.
	TokenFile string `json:"token_file"`
	// Callers lists the callers whose calls are counted separately.
	Callers []string `json:"callers"`
}

// maxMetricCallers bounds the series of callers.
const maxMetricCallers = 100

func defaultMetrics() Metrics { return Metrics{Callers: []string{}} }

func (m Metrics) validate() error {
	if strings.HasPrefix(m.Listen, "unix:") {
		return bad("metrics.listen", m.Listen, "must be HOST:PORT; GET /metrics of the service's own socket has them too")
	}
	if m.Listen != "" {
		if err := validateAddress("metrics.listen", m.Listen); err != nil {
			return err
		}
	}
	switch {
	case m.TokenFile != "" && !isAbsolute(m.TokenFile):
		return bad("metrics.token_file", m.TokenFile, "must be an absolute path")
	case m.TokenFile != "" && m.Listen == "":
		return bad("metrics.token_file", m.TokenFile, "needs metrics.listen")
	case len(m.Callers) > maxMetricCallers:
		return bad("metrics.callers", len(m.Callers), "must have at most 100 names")
	}
	for _, c := range m.Callers {
		if !names.MatchString(c) {
			return bad("metrics.callers", quoted(c), namesText)
		}
	}
	return nil
}
