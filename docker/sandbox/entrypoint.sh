#!/bin/sh
# PID 1 of a sandbox until it execs the guest:
#
#     entrypoint.sh GUEST [ARGUMENT...]
#
# It refuses to continue in a container that is not a sandbox: one with a writable root, with a guest that commands
# could overwrite, or with a workspace that is not a mount. It then prints the reason to stderr and exits with
#   70 no guest given      71 the guest is missing or not executable
#   72 the guest's directory is not a read-only mount
#   73 /workspace is not a mount          74 / is not read-only
#
# It uses only POSIX sh and its builtins, because other files of the image are not trusted.

refuse() {
	code=$1
	shift
	echo "entrypoint.sh: $*" >&2
	exit "$code"
}

# options_of MOUNTPOINT sets $options to the options of the mount there, or to nothing.
# Of several mounts at one place, the last one is visible.
options_of() {
	options=
	while read -r _ at _ opts _; do
		[ "$at" = "$1" ] && options=$opts
	done </proc/self/mounts
}

# mount_of PATH sets $mount to the mount point that contains PATH.
mount_of() {
	mount=/
	while read -r _ at _; do
		case $1/ in
		"$at"/*) [ "${#at}" -gt "${#mount}" ] && mount=$at ;;
		esac
	done </proc/self/mounts
}

read_only() {
	case ",$1," in
	*,ro,*) return 0 ;;
	esac
	return 1
}

guest=${1:-}
[ -n "$guest" ] || refuse 70 "no guest given: pass the path of the guest as the first argument"
[ -r /proc/self/mounts ] || refuse 74 "/proc is not mounted"

case $guest in
/*/*) ;;
*) refuse 71 "the guest must be an absolute path in a separate directory, not $guest" ;;
esac
{ [ -f "$guest" ] && [ -x "$guest" ]; } || refuse 71 "the guest $guest is missing or not executable"

# A local guest is in /run/orchestrator. On a remote engine, it is in a separate volume.
dir=${guest%/*}
mount_of "$dir"
[ "$mount" != / ] || refuse 72 "$dir is not a mount: the guest must come from outside the image"
options_of "$mount"
read_only "$options" || refuse 72 "$mount is mounted writable: the guest could be replaced"
options_of /run/orchestrator
[ -z "$options" ] || read_only "$options" || refuse 72 "/run/orchestrator is mounted writable"

options_of /workspace
[ -n "$options" ] || refuse 73 "/workspace is not a mount"

options_of /
read_only "$options" || refuse 74 "the root filesystem is not read-only"

exec "$@"
