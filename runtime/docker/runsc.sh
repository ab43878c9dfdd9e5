#!/bin/sh
# Docker starts this program for runsc. Sandboxes of class gvisor run in cgroups that the orchestrator creates before the
# start. It writes their names, one per line, to a file with the name of the container. runsc's own cgroup handling is off,
# because it fails if a cgroup is also mounted elsewhere, as it is for every other sandbox. Containers of other users do not
# start, because they would have no limits. Docker passes the flags of "runtimeArgs" first, and the container last.
making=
for last; do
	[ "$last" != create ] || making=yes
done
if [ -n "$making" ]; then
	while read -r cgroup; do
		echo $$ >"$cgroup/cgroup.procs" || exit 125
	done <"/run/orchestrator-gvisor/$last" || exit 125
fi
exec runsc --ignore-cgroups "$@"
