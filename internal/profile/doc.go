// Package profile defines what a caller sees of the service: the tools with their names, inputs and
// results, and the rules for calls. A profile is a data file. The built-in profiles imitate other
// systems.
//
// Load parses files strictly: size, depth and aliases are bounded, and an error is a *FileError
// with file, line and field. A file may extend another one; see extend for the merge rules.
// Configuration files of the gateway system are accepted as profiles.
//
// For a call, Prepare validates the input and maps it to the input of a built-in tool, and Finish
// maps the result back. Both evaluate expressions and templates with bounded cost and size. They do
// not run commands, decide or ask for approval: the engine does that with the policy, rules and
// caps from here.
//
// A compiled profile is immutable and safe for concurrent use. The package starts no goroutine.
package profile
