// Functions without a body (see fork.go) need an assembly file beside them.
