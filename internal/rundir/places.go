package rundir

// Paths returns the RunDir and the WorkspaceDir for these options, for a driver that records a
// container before its run directory exists. Options.Dir must exist.
func Paths(o Options) (runDir, slotDir string, err error) {
	c, err := newDir(o)
	if err != nil {
		return "", "", err
	}
	return c.RunDir(), c.WorkspaceDir(), nil
}
