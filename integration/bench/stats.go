package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// samples are durations of repeated runs.
type samples []time.Duration

// at returns a quantile by nearest rank, which is always a measured value.
func (s samples) at(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Clone(s)
	slices.Sort(sorted)
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

func (s samples) p50() time.Duration { return s.at(0.50) }
func (s samples) p99() time.Duration { return s.at(0.99) }
func (s samples) max() time.Duration { return s.at(1) }

// timed runs do n times and returns the durations.
func timed(n int, do func(i int) error) (samples, error) {
	s := make(samples, 0, n)
	for i := range n {
		began := time.Now()
		if err := do(i); err != nil {
			return s, err
		}
		s = append(s, time.Since(began))
	}
	return s, nil
}

// Figures are never rounded in our favour: times and sizes round up, rates and factors down.

// ms formats a duration in milliseconds, rounded up.
func ms(d time.Duration) string {
	v := float64(d) / float64(time.Millisecond)
	if v >= 100 {
		return fmt.Sprintf("%.0f ms", math.Ceil(v))
	}
	return fmt.Sprintf("%.2f ms", math.Ceil(v*100)/100)
}

// mb formats bytes in MB, rounded up.
func mb(bytes int64) string { return fmt.Sprintf("%.1f MB", math.Ceil(float64(bytes)/1e5)/10) }

// rate formats n per second, rounded down.
func rate(n int, d time.Duration, unit string) string {
	return fmt.Sprintf("%.0f %s/s", math.Floor(perSecond(n, d)), unit)
}

// perSecond returns n per second.
func perSecond(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }

// factor returns a divided by b, or 0 if b is 0.
func factor(a, b time.Duration) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// times formats a factor, rounded down.
func times(f float64) string { return fmt.Sprintf("%.1f×", math.Floor(f*10)/10) }
