// Package tool defines tools, and implements those for commands, background commands and files.
// Inputs and outputs are typed, and JSON Schemas are generated from the types.
//
// A tool checks its input without a sandbox. What it needs to run is an interface beside the tool,
// such as [Runner] and [Files], which the caller passes to its [Run].
//
// The package does not decide who may call a tool.
package tool
