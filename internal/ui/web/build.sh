#!/usr/bin/env bash
# Builds the pages of the dashboard with Node 18 or newer and npm:
#
#     build.sh            writes ../static
#     build.sh --check    builds elsewhere, and fails if ../static differs
#
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
command -v npm >/dev/null || { echo "npm is missing: run integration/scripts/deps.sh" >&2; exit 1; }
exec 9>.build.lock
flock 9
# npm ci does nothing new while the lock file is that of the installed packages.
if ! cmp -s package-lock.json node_modules/.installed; then
    npm ci --no-audit --no-fund --loglevel=error --fetch-retries=1 >&2
    cp package-lock.json node_modules/.installed
fi
node_modules/.bin/tsc --project tsconfig.json
case ${1:-} in
'') out=../static ;;
--check) out=$(mktemp -d); trap 'rm -rf "$out"' EXIT ;;
*) echo "usage: build.sh [--check]" >&2; exit 2 ;;
esac
mkdir -p "$out"
node build.mjs "$out"
[[ $out == ../static ]] || diff -rq ../static "$out" >&2 || {
    echo "internal/ui/static is not what its sources build: run internal/ui/web/build.sh and commit the result" >&2
    exit 1
}
