#!/usr/bin/env bash
# Makes build/package/*.deb and *.rpm from bin/orchestrator, which must be built. VERSION is that of the packages.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

GO=${GO:-go}
out=build/package
rm -rf "$out"
mkdir -p "$out/man"
install -m 0755 bin/orchestrator "$out/orchestrator"
ARCH=$("$GO" version -m bin/orchestrator | sed -n 's/.*GOARCH=//p')
# A build without a tag sorts before every release.
version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo dev)}
version=${version#v}
[[ $version =~ ^[0-9]+\.[0-9]+ ]] || version=0.0.0+$version
export ARCH VERSION=${version//-/.}
# Packages of the same source are the same.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH

# The program of this machine describes the one in the packages.
program=$out/orchestrator
[[ $ARCH == "$("$GO" env GOHOSTARCH)" ]] || program=${ORCHESTRATOR_HOST_PROGRAM:?"set it to a program for this machine"}
"$program" manual "$out/man"
gzip --best --no-name "$out"/man/*
for shell in bash zsh fish; do "$program" completion "$shell" >"$out/completion.$shell"; done
"$program" config >"$out/orchestrator.yaml"
gzip --best --no-name --stdout CHANGELOG.md >"$out/changelog.gz"
sed -e 's#/usr/local/bin/#/usr/bin/#' -e '/^# Runs the service/,/^# Settings/d' \
    -e 's#^EnvironmentFile=#Environment=ORCHESTRATOR_CONFIG=/etc/orchestrator/orchestrator.yaml\n&#' \
    deploy/systemd/orchestrator.service >"$out/orchestrator.service"

(cd deploy/package && GOFLAGS='' "$GO" build -trimpath -o "../../$out/nfpm" github.com/goreleaser/nfpm/v2/cmd/nfpm)
for packager in deb rpm; do
    "$out/nfpm" package --config deploy/package/nfpm.yaml --packager "$packager" --target "$out/"
done
