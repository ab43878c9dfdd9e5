#!/bin/sh
# Runs after the package was removed. A purge by dpkg also removes the state directory: records, images, workspaces.
set -e

if [ "$1" = purge ]; then
    # Do not delete through a workspace that is still mounted.
    rm -rf --one-file-system /var/lib/orchestrator /etc/orchestrator
    rm -f /etc/default/orchestrator
fi
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
