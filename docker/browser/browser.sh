#!/bin/sh
# The browser of a browser's sandbox:
#
#     browser run      Chromium without a window, with a fresh profile, until it is killed
#     browser ready    waits until that one listens
#     browser trust    takes authorities in PEM on standard input for hosts' certificates, before the first page
#
# It listens on loopback, port 9222, for the host that drives it, and reaches everything else by the sandbox's proxy
# alone: names are never looked up in here, and what a page asks of loopback goes to the proxy too. What else is to be
# off stands in the policies of the image (/etc/chromium/policies).
set -eu

port=9222
proxy=127.0.0.1:3128
nowhere=http://127.0.0.1:1 # for what Chromium asks of its makers however it is told not to: the gateway refuses it
home=/tmp/browser # on a tmpfs, gone with the sandbox
store=sql:$home/.pki/nssdb

run() {
	mkdir -m 0700 -p "$home/.pki/nssdb" "$home/tmp"
	export HOME="$home" TMPDIR="$home/tmp"
	certutil -N -d "$store" --empty-password
	# No user namespace is to be had in a sandbox, and nothing may be setuid: so Chromium's own sandbox is off, and the
	# one around it is all there is. /dev/shm is small; shared memory goes to the tmpfs.
	exec /usr/lib/chromium/chromium \
		--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --mute-audio --hide-scrollbars \
		--remote-debugging-address=127.0.0.1 --remote-debugging-port="$port" --user-data-dir="$home/profile" \
		--proxy-server="http://$proxy" --proxy-bypass-list='<-loopback>' \
		--host-resolver-rules='MAP * ~NOTFOUND , EXCLUDE 127.0.0.1' \
		--disable-quic --dns-prefetch-disable --no-pings --force-webrtc-ip-handling-policy=disable_non_proxied_udp \
		--disable-background-networking --disable-component-update --disable-domain-reliability --disable-sync \
		--disable-client-side-phishing-detection --disable-default-apps --disable-extensions \
		--disable-component-extensions-with-background-pages --disable-breakpad --disable-crash-reporter \
		--disable-features=AutofillServerCommunication,DialMediaRouteProvider,MediaRouter,OptimizationHints,Translate,InterestFeedContentSuggestions,OnDeviceModel,GlobalMediaControls \
		--gaia-url="$nowhere" --google-url="$nowhere" --variations-server-url="$nowhere" \
		--component-updater=url-source="$nowhere/" --metrics-recording-only --no-first-run --no-default-browser-check --no-service-autorun \
		--password-store=basic --use-mock-keychain --disable-search-engine-choice-screen \
		--block-new-web-contents --disable-print-preview --renderer-process-limit=8 --disk-cache-size=33554432 \
		--js-flags=--max-old-space-size=512 --lang=en-US --font-render-hinting=none \
		about:blank
}

# listens: bash alone can say it without a further program.
ready() {
	until bash -c "exec 3<>/dev/tcp/127.0.0.1/$port" 2>/dev/null; do
		sleep 0.05
	done
}

# trust splits what comes, for certutil takes one certificate of a file.
trust() {
	dir=$(mktemp -d "$home/trust.XXXXXX")
	awk -v dir="$dir" '
		/-----BEGIN CERTIFICATE-----/ { n++; on = 1 }
		on { print > (dir "/" n ".pem") }
		/-----END CERTIFICATE-----/ { on = 0; close(dir "/" n ".pem") }
		END { if (!n) exit 1 }' || { echo "browser trust: no certificate on standard input" >&2; exit 65; }
	for file in "$dir"/*.pem; do
		certutil -A -d "$store" -n "operator $(basename "$file" .pem)" -t C,, -i "$file"
	done
	rm -r "$dir"
}

case ${1:-} in
run | ready | trust) "$1" ;;
*) echo "usage: browser run|ready|trust" >&2; exit 64 ;;
esac
