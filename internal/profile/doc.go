// Package profile is what a caller sees of the service: which tools, under which
// names and in which shapes, with which rules. A profile is a data file; the
// systems that this service stands in for are profiles that come with it.
//
// Load reads files strictly: sizes, depth and aliases are bounded, and what is
// wrong is a *FileError with file, line and place. A file may extend another
// one; how both are merged is said at extend. Configuration files of the gateway
// system are profiles too (FromGateway).
//
// Of a call, Prepare checks the input and maps it to a built-in tool's, Finish
// maps what came of it back. Both run expressions and templates, whose work and
// results are bounded; neither runs a command, decides on one or asks anybody:
// the engine does, with the policy, the rules and the caps that it finds here.
//
// A compiled profile is immutable and may be used by many goroutines at once.
// The package starts none.
package profile
