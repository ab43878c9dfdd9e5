package config

import "time"

// Jobs bounds jobs; see docs/jobs.md.
type Jobs struct {
	// MaxCommands bounds the commands of one job, after the matrix.
	MaxCommands int `json:"max_commands"`
	// MaxActive bounds the jobs of a caller that have not ended, and MaxKept all of them.
	MaxActive int `json:"max_active"`
	MaxKept   int `json:"max_kept"`
	// MaxNative bounds the native commands of a caller that the cluster holds or runs.
	MaxNative int `json:"max_native"`
	// CallerBytes bounds what the jobs of one caller keep on disk.
	CallerBytes Size `json:"caller_bytes"`
	// MaxDeadline bounds how long a job may take, and MaxTTL how long it is kept after its end.
	MaxDeadline Duration `json:"max_deadline"`
	MaxTTL      Duration `json:"max_ttl"`
}

func defaultJobs() Jobs {
	return Jobs{
		MaxCommands: 10_000, MaxActive: 100, MaxKept: 1000, MaxNative: 100, CallerBytes: 4 << 30,
		MaxDeadline: Duration(7 * 24 * time.Hour), MaxTTL: Duration(30 * 24 * time.Hour),
	}
}

func (j Jobs) validate() error {
	const count = "must be from 1 to 100000"
	outside := func(n int) bool { return n < 1 || n > 100_000 }
	switch {
	case outside(j.MaxCommands):
		return bad("jobs.max_commands", j.MaxCommands, count)
	case outside(j.MaxActive):
		return bad("jobs.max_active", j.MaxActive, count)
	case outside(j.MaxKept):
		return bad("jobs.max_kept", j.MaxKept, count)
	case j.MaxKept < j.MaxActive:
		return bad("jobs.max_kept", j.MaxKept, "must not be less than jobs.max_active")
	case j.MaxNative < 1 || j.MaxNative > 1000:
		return bad("jobs.max_native", j.MaxNative, "must be from 1 to 1000")
	case j.CallerBytes < 1<<20:
		return bad("jobs.caller_bytes", j.CallerBytes, "must be at least 1MiB")
	case j.MaxDeadline < Duration(time.Second):
		return bad("jobs.max_deadline", j.MaxDeadline, "must be at least 1s")
	case j.MaxTTL < Duration(time.Second):
		return bad("jobs.max_ttl", j.MaxTTL, "must be at least 1s")
	}
	return nil
}
