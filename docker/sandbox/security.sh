#!/bin/sh
# Adds the archive of security updates to apt's sources in a Debian root, unless it is there:
#
#     security.sh [ARCHIVE]
#
# debootstrap adds only one suite, and programs that use the network need security updates.
set -eu

grep -rqs -- -security /etc/apt/sources.list /etc/apt/sources.list.d && exit 0
. /etc/os-release
echo "deb ${1:-http://deb.debian.org/debian-security} $VERSION_CODENAME-security main" >/etc/apt/sources.list.d/security.list
