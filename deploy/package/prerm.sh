#!/bin/sh
# Runs before the package is removed or upgraded: dpkg passes a word, rpm how many versions remain.
set -e

case "$1" in
upgrade | failed-upgrade | 1) exit 0 ;;
esac
[ -d /run/systemd/system ] || exit 0
systemctl --no-reload disable --now orchestrator.service || :
# Nothing else would end the sandboxes. Workspaces and records stay.
/usr/bin/orchestrator down --config /etc/orchestrator/orchestrator.yaml || :
