package pool

import (
	"math"
	"time"
)

// Times and weights of what demand is told from.
const (
	// rateTime is the memory of the average rate of arrivals.
	rateTime = 20 * time.Second
	// peakHalf is how long it takes until a peak counts half: demand raises the
	// target at once and silence lowers it slowly.
	peakHalf = 2 * time.Minute
	// spread is how many standard deviations above the average are kept warm:
	// arrivals that have nothing to do with each other exceed that once in some
	// hundred times.
	spread = 2.5
	// makeWeight is the weight of the latest creation in their average time.
	makeWeight = 0.2
	// makeFirst is that time until the first one is known, makeLeast and
	// makeMost its bounds.
	makeFirst = 500 * time.Millisecond
	makeLeast = 20 * time.Millisecond
	makeMost  = 30 * time.Second
	// maxArrivals bounds how many arrivals are remembered one by one.
	maxArrivals = 1024
)

// demand tells from who came of late how many should be warm: as many as come
// while one is made. It is that number on average with a margin, or the most
// that came within such a time, which fades. Who comes and finds none raises it
// by one: new ones may have to wait for their turn to be made. Only time and
// arrivals decide. The pool's lock guards it; its zero value has seen nobody.
type demand struct {
	average time.Duration // to make one
	rate    float64       // arrivals a second
	peak    float64       // the most within the time to make one
	at      time.Time     // when rate and peak were right
	recent  []time.Time   // arrivals within the time to make one
	miss    time.Time     // when the last one who found none was counted
}

// made notes how long a creation took.
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

// came notes one who asks for a sandbox.
func (d *demand) came(now time.Time) {
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

// missed notes one who found none warm of so many that were wanted. Those who
// come while one is made count as one.
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

// need is how many should be warm. A peak of one that came alone is forgotten
// after one half time, so that silence asks for none.
func (d *demand) need(now time.Time) int {
	d.fade(now)
	while := d.rate * d.lead().Seconds()
	steady := while + spread*math.Sqrt(while)
	if d.rate < 1/(4*rateTime.Seconds()) { // nobody came for a while
		steady = 0
	}
	return int(math.Ceil(max(steady, d.peak) - 0.5))
}
