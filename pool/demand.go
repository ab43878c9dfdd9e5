package pool

import (
	"math"
	"time"
)

// Time constants and weights of the demand estimate.
const (
	// rateTime is the time constant of the average arrival rate.
	rateTime = 20 * time.Second
	// peakHalf is the half-life of a peak: demand raises the target at once, and silence lowers it
	// slowly.
	peakHalf = 2 * time.Minute
	// spread is how many standard deviations above the average are kept warm. Independent arrivals
	// exceed that about once in several hundred times.
	spread = 2.5
	// makeWeight is the weight of the latest creation in the average creation time.
	makeWeight = 0.2
	// makeFirst is the assumed creation time before the first is measured. makeLeast and makeMost
	// bound the measured times.
	makeFirst = 500 * time.Millisecond
	makeLeast = 20 * time.Millisecond
	makeMost  = 30 * time.Second
	// maxArrivals bounds the number of remembered arrivals.
	maxArrivals = 1024
)

// demand estimates how many sandboxes should be warm: as many as callers arrive while one is made.
// That is the average with a margin, or the highest count within such a time, which decays. A
// caller who finds no warm sandbox raises the estimate by one. Only times and arrivals matter. The
// pool's lock guards it. The zero value has seen no arrivals.
type demand struct {
	average time.Duration // to make one
	rate    float64       // arrivals per second
	peak    float64       // the most arrivals within the time to make one
	at      time.Time     // when rate and peak were last updated
	recent  []time.Time   // arrivals within the time to make one
	miss    time.Time     // when an arrival that found none warm was last counted
}

// made records how long a creation took.
func (d *demand) made(took time.Duration) {
	took = min(max(took, makeLeast), makeMost)
	if d.average == 0 {
		d.average = took
		return
	}
	d.average += time.Duration(makeWeight * float64(took-d.average))
}

func (d *demand) lead() time.Duration {
	if d.average == 0 {
		return makeFirst
	}
	return d.average
}

// arrived records a caller who asks for a sandbox.
func (d *demand) arrived(now time.Time) {
	d.fade(now)
	d.rate += 1 / rateTime.Seconds()
	old := now.Add(-d.lead())
	first := 0
	for first < len(d.recent) && d.recent[first].Before(old) {
		first++
	}
	if len(d.recent)-first >= maxArrivals {
		first = len(d.recent) - maxArrivals + 1
	}
	d.recent = append(d.recent[:0], d.recent[first:]...)
	d.recent = append(d.recent, now)
	d.peak = max(d.peak, float64(len(d.recent)))
}

// missed records a caller who found no warm sandbox although wanted were to be warm. Callers who
// arrive while one is made count once.
func (d *demand) missed(now time.Time, wanted int) {
	if now.Sub(d.miss) >= d.lead() {
		d.miss = now
		d.peak = max(d.peak, float64(wanted+1))
	}
}

func (d *demand) fade(now time.Time) {
	if !d.at.IsZero() {
		past := now.Sub(d.at).Seconds()
		d.rate *= math.Exp(-past / rateTime.Seconds())
		d.peak *= math.Exp2(-past / peakHalf.Seconds())
	}
	d.at = now
}

// need returns how many should be warm. The peak of a single caller decays to nothing after one
// half-life, so that silence asks for none.
func (d *demand) need(now time.Time) int {
	d.fade(now)
	while := d.rate * d.lead().Seconds()
	steady := while + spread*math.Sqrt(while)
	if d.rate < 1/(4*rateTime.Seconds()) { // no arrivals for a while
		steady = 0
	}
	return int(math.Ceil(max(steady, d.peak) - 0.5))
}
