// Package tool holds the built-in tools, one file each: typed in and out, with
// JSON Schemas made from the types. A tool checks its input without a sandbox
// and runs through a Box, which is the engine's.
//
// It decides nothing about who may call what.
package tool
