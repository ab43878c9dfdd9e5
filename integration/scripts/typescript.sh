#!/usr/bin/env bash
# Prints a directory outside of the checkout with the npm packages of integration/typescript/package-lock.json, and
# installs them there if they are missing:
#
#     typescript.sh        prints the directory; the packages are in its node_modules
#
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

source=$ROOT/integration/typescript
hash=$(sha256sum <"$source/package-lock.json")
dir=$CACHE/tools/typescript-${hash:0:16}
mkdir -p "$CACHE/tools"
exec 8>"$CACHE/tools/typescript.lock"
flock 8
if [[ ! -d $dir ]]; then
    command -v npm >/dev/null || die "npm is missing: run integration/scripts/deps.sh or install npm"
    say "installing the npm packages of integration/typescript (once; about 200 MB)"
    new=$(mktemp -d "$CACHE/tools/tmp.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    cp "$source/package.json" "$source/package-lock.json" "$new/"
    # Node has its own list of certificate authorities: use this machine's, like everything else here.
    if [[ -z ${NODE_EXTRA_CA_CERTS:-} && -r /etc/ssl/certs/ca-certificates.crt ]]; then
        export NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
    fi
    retry 3 timeout 300 npm ci --prefix "$new" --ignore-scripts --no-audit --no-fund --no-update-notifier --fetch-retries=1 \
        --loglevel=error >"$new/install.log" 2>&1 </dev/null 8>&- ||
        { tail -n 20 "$new/install.log" >&2; die "npm failed to install the packages: check that the registry is reachable, or copy an installed directory to $dir"; }
    chmod 0755 "$new"
    mv -T "$new" "$dir"
fi
printf '%s\n' "$dir"
