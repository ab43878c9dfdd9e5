#!/bin/sh
# What Docker starts for runsc: sandboxes of class gvisor run in cgroups that the orchestrator makes before the start, and
# names, one in a line, in a file called as the container. runsc's own handling of cgroups is off: it gives up where a cgroup
# is mounted in a second place, as it is for every other sandbox. A container of somebody else is not started, for nothing would
# cap it. Docker gives the flags of "runtimeArgs" first; the last word is the container.
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
