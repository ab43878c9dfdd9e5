package main

import (
	goruntime "runtime"
	"sync"
)

// Commands without their own cgroup share the process limit with the guest. If they use it up when
// the Go runtime needs another thread for a blocking system call, the runtime ends the process. So
// threads are created in advance; the runtime keeps them.
const (
	guestThreads  = 24
	bridgeThreads = 8
)

// keepThreads creates n additional threads.
func keepThreads(n int) {
	var there, gone sync.WaitGroup
	there.Add(n)
	release := make(chan struct{})
	for range n {
		gone.Go(func() {
			goruntime.LockOSThread() // occupies a separate thread while it waits
			defer goruntime.UnlockOSThread()
			there.Done()
			<-release
		})
	}
	there.Wait()
	close(release)
	gone.Wait()
}
