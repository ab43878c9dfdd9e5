// Package tool implements the built-in tools, one per file. Inputs and outputs are typed, and JSON
// Schemas are generated from the types. A tool checks its input without a sandbox and runs through
// a Box, which the engine provides.
//
// The package does not decide who may call a tool.
package tool
