package cli

import "os"

// readableByOthers returns false: Windows keeps access lists instead of modes, and the directory of
// a user is closed to others.
func readableByOthers(os.FileInfo) bool { return false }
