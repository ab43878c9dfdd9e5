// Package profile is what a caller sees of the service: which tools, under which
// names and in which shapes, with which rules. A profile is a data file; the
// systems that this service stands in for are profiles that come with it.
//
// A compiled profile is immutable and may be used by many goroutines at once.
package profile
