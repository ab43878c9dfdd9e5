#!/bin/sh
# Names the archive of security updates to apt, in a Debian root whose sources do not know it yet:
#
#     security.sh [ARCHIVE]
#
# debootstrap knows one suite alone; what speaks to the network is not to be without its updates.
set -eu

grep -rqs -- -security /etc/apt/sources.list /etc/apt/sources.list.d && exit 0
. /etc/os-release
echo "deb ${1:-http://deb.debian.org/debian-security} $VERSION_CODENAME-security main" >/etc/apt/sources.list.d/security.list
