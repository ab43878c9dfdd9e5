// Package ocidriver holds what the drivers share that hand an OCI configuration to the host: checks
// that the caps can hold here, running sandboxes and their first processes, cgroups and their
// removal, and a lock per sandbox.
//
// It never creates a container and keeps nothing on disk. It starts one goroutine per running
// sandbox, which [Sandbox.Forget] waits for. Errors are of class FailedPrecondition if the host
// lacks something, and say what to do; other errors wrap what the kernel returned.
package ocidriver
