package rundir

// Paths says where the cell of these options has its RunDir and its SlotDir, made or not, for who writes a container down before its cell is made.
// Dir must be there.
func Paths(o Options) (runDir, slotDir string, err error) {
	c, err := newDir(o)
	if err != nil {
		return "", "", err
	}
	return c.RunDir(), c.WorkspaceDir(), nil
}
