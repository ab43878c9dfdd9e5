// Package ocidriver holds what the drivers share that hand an OCI configuration to the host: checks
// that the caps can hold here, the order of creating, adopting and removing a sandbox, running
// sandboxes and their first processes, cgroups and their removal, and a lock per sandbox.
//
// The driver makes the container and keeps its records; see [Base]. The package starts one
// goroutine per running sandbox, which Destroy, Release and Close wait for. Errors are of class
// FailedPrecondition if the host lacks something, and say what to do; other errors wrap what the
// kernel returned.
package ocidriver
