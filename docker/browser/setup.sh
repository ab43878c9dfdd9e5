#!/bin/sh
# Installs the files of the browser image. It runs inside the root, in the directory with the files, as root, after the
# packages were installed.
set -eu

install -D -m 0755 browser.sh /usr/local/lib/orchestrator/browser
install -D -m 0644 policies.json /etc/chromium/policies/managed/orchestrator.json

# Remove Mesa's drivers with LLVM, which are not used without a graphics card: the CPU renders pages. Remove icons and
# sounds, which only windows need.
lib=/usr/lib/$(uname -m)-linux-gnu
rm -rf "$lib"/dri "$lib"/libLLVM* "$lib"/libz3.so* /usr/lib/chromium/libVkLayer_* /usr/lib/chromium/libVkICD_* \
	/usr/share/icons /usr/share/sounds /usr/share/themes /usr/share/mime/packages
find /usr/lib/chromium/locales -type f ! -name 'en-US*' -delete

# Build the font cache now, because the root is read-only later.
fc-cache --system-only --force
