#!/bin/sh
# What the browser's image has beside its packages; run inside of it, in the folder with the files, as root, after the
# packages were installed.
set -eu

install -D -m 0755 browser.sh /usr/local/lib/orchestrator/browser
install -D -m 0644 policies.json /etc/chromium/policies/managed/orchestrator.json

# Without a graphics card nobody loads Mesa's drivers, and with them goes LLVM: pages are painted on the CPU. Icons and
# sounds are for windows.
lib=/usr/lib/$(uname -m)-linux-gnu
rm -rf "$lib"/dri "$lib"/libLLVM* "$lib"/libz3.so* /usr/lib/chromium/libVkLayer_* /usr/lib/chromium/libVkICD_* \
	/usr/share/icons /usr/share/sounds /usr/share/themes /usr/share/mime/packages
find /usr/lib/chromium/locales -type f ! -name 'en-US*' -delete

# The fonts are looked through now: nothing can be written there later.
fc-cache --system-only --force
