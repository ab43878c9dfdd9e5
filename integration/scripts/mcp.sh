#!/usr/bin/env bash
# Prints the directory of the public MCP conformance suite and its Node version, and installs both there with npm
# if they are missing:
#
#     mcp.sh        prints the directory; node and conformance are in its node_modules/.bin
#
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

SUITE_VERSION=0.1.16
NODE_MAJOR=22

dir=$CACHE/tools/mcp-conformance-$SUITE_VERSION-node$NODE_MAJOR
bin=node_modules/.bin
mkdir -p "$CACHE/tools"
exec 8>"$CACHE/tools/mcp-conformance.lock"
flock 8
if [[ ! -x $dir/$bin/node || ! -e $dir/$bin/conformance ]]; then
    command -v npm >/dev/null || die "npm is missing: run integration/scripts/deps.sh or install npm"
    say "installing the MCP conformance suite $SUITE_VERSION with Node $NODE_MAJOR (once; about 240 MB)"
    new=$(mktemp -d "$CACHE/tools/tmp.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    printf '{"private": true}\n' >"$new/package.json"
    # Node has its own list of certificate authorities: use this machine's, like everything else here.
    if [[ -z ${NODE_EXTRA_CA_CERTS:-} && -r /etc/ssl/certs/ca-certificates.crt ]]; then
        export NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
    fi
    retry 3 timeout 300 npm install --prefix "$new" --no-audit --no-fund --no-update-notifier --fetch-retries=1 --loglevel=error \
        "node@$NODE_MAJOR" "@modelcontextprotocol/conformance@$SUITE_VERSION" >"$new/install.log" 2>&1 </dev/null 8>&- ||
        { tail -n 20 "$new/install.log" >&2; die "npm failed to install the MCP conformance suite: check that the registry is reachable, or copy an installed directory to $dir"; }
    version=$("$new/$bin/node" --version)
    [[ $version == v$NODE_MAJOR.* ]] || die "npm package node@$NODE_MAJOR installed $version, want v$NODE_MAJOR"
    rm -rf "$dir"
    chmod 0755 "$new"
    mv -T "$new" "$dir"
fi
printf '%s\n' "$dir"
