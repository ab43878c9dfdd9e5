package config

import (
	"io/fs"
	"strconv"
)

// Modes of a unix socket: for its owner only, or for its group too. Connecting requires write
// permission.
const (
	socketOwner = fs.FileMode(0o600)
	socketShare = fs.FileMode(0o660)
)

// SocketPerm returns the mode of the service's unix socket: SocketMode, or else 0660 with a
// SocketGroup and 0600 without. Call it on a valid configuration.
func (c Config) SocketPerm() fs.FileMode {
	mode, err := strconv.ParseUint(c.SocketMode, 8, 32)
	switch {
	case err == nil:
		return fs.FileMode(mode)
	case c.SocketGroup != "":
		return socketShare
	}
	return socketOwner
}

// validateSocket checks socket_group and socket_mode.
func (c Config) validateSocket() error {
	if c.SocketGroup == "" && c.SocketMode == "" {
		return nil
	}
	if network, _ := SplitListen(c.Listen); network != "unix" {
		return bad("listen", c.Listen, "must be unix:PATH with socket_group or socket_mode")
	}
	if c.SocketMode == "" {
		return nil
	}
	parsed, err := strconv.ParseUint(c.SocketMode, 8, 32)
	mode := fs.FileMode(parsed)
	switch {
	case err != nil || parsed > 0o7777:
		return bad("socket_mode", quoted(c.SocketMode), `must be "0600" or "0660"`)
	case mode&0o007 != 0:
		return bad("socket_mode", quoted(c.SocketMode), "every account of this host would be an operator: "+
			`use "0660" and socket_group`)
	case mode != socketOwner && mode != socketShare:
		return bad("socket_mode", quoted(c.SocketMode), `must be "0600" or "0660"`)
	case mode == socketShare && c.SocketGroup == "":
		return bad("socket_mode", quoted(c.SocketMode), "needs socket_group, the group that may connect")
	case mode == socketOwner && c.SocketGroup != "":
		return bad("socket_mode", quoted(c.SocketMode), `must be "0660" with socket_group`)
	}
	return nil
}
