#!/bin/sh
# PID 1 of a sandbox until it execs the guest:
#
#     entrypoint.sh GUEST [ARGUMENT...]
#
# It refuses to go on in a container that is not set up as one of ours: a writable root, a guest that the commands
# could overwrite, a workspace that is not a mount. One line on stderr says which; the exit codes are
#   70 no guest given      71 the guest is missing or not executable
#   72 the guest's folder is not a read-only mount
#   73 /workspace is not a mount          74 / is not read-only
#
# POSIX sh and its builtins only: nothing else of the image is trusted or needed.

refuse() {
	code=$1
	shift
	echo "entrypoint.sh: $*" >&2
	exit "$code"
}

# options_of MOUNTPOINT sets $options to the options of the mount on it, or to nothing.
# Of several mounts at one place the last is the one that is seen.
options_of() {
	options=
	while read -r _ at _ opts _; do
		[ "$at" = "$1" ] && options=$opts
	done </proc/self/mounts
}

# mount_of PATH sets $mount to the mount point that PATH lies on.
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
[ -n "$guest" ] || refuse 70 "no guest given: the first argument is the path of the guest"
[ -r /proc/self/mounts ] || refuse 74 "/proc is not mounted"

case $guest in
/*/*) ;;
*) refuse 71 "the guest must be an absolute path in a folder of its own, not $guest" ;;
esac
{ [ -f "$guest" ] && [ -x "$guest" ]; } || refuse 71 "the guest $guest is missing or not executable"

# Locally the guest is in /run/orchestrator; on a remote engine it comes in a volume of its own.
folder=${guest%/*}
mount_of "$folder"
[ "$mount" != / ] || refuse 72 "$folder is not a mount: the guest must come from outside the image"
options_of "$mount"
read_only "$options" || refuse 72 "$mount is mounted writable: the guest could be replaced"
options_of /run/orchestrator
[ -z "$options" ] || read_only "$options" || refuse 72 "/run/orchestrator is mounted writable"

options_of /workspace
[ -n "$options" ] || refuse 73 "/workspace is not a mount"

options_of /
read_only "$options" || refuse 74 "the root filesystem is not read-only"

exec "$@"
