#!/bin/sh
# Runs after the package was installed or upgraded, with the arguments of dpkg or rpm.
set -e

if [ -x "$(command -v systemd-sysusers)" ]; then systemd-sysusers orchestrator.conf || :; fi
if [ -x "$(command -v systemd-tmpfiles)" ]; then systemd-tmpfiles --create orchestrator.conf || :; fi
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
# After an upgrade the new program adopts the sandboxes of the old one.
systemctl try-restart orchestrator.service
