package httpguard

// openFiles returns 0: how many files this process may open is not known.
func openFiles() int { return 0 }
