package main

import (
	goruntime "runtime"
	"sync"
)

// Where commands have no cgroup of their own they share the cap on processes
// with the guest, and may have used it up when Go's runtime wants another thread
// for a system call that lasts: it ends the process then. A thread that was made
// is kept.
const (
	guestThreads  = 24
	bridgeThreads = 8
)

// keepThreads has so many threads made, beside those that there are.
func keepThreads(n int) {
	var there, gone sync.WaitGroup
	there.Add(n)
	release := make(chan struct{})
	for range n {
		gone.Go(func() {
			goruntime.LockOSThread() // for as long as it waits it has one for itself
			defer goruntime.UnlockOSThread()
			there.Done()
			<-release
		})
	}
	there.Wait()
	close(release)
	gone.Wait()
}
