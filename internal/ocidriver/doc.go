// Package ocidriver owns what the drivers that hand an OCI configuration to a host share: the checks that its caps can hold here, a hold on
// running sandboxes and their first processes, their cgroups until nothing is left of them, and the order of calls about one sandbox.
//
// It never makes a container and keeps nothing on disk. It starts one goroutine for each sandbox that is held, which [Held.LetGo] waits for. Errors are of class FailedPrecondition where the
// host lacks something, and say what to do; else they are what the kernel said, wrapped.
package ocidriver
