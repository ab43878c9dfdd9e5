#!/bin/sh
# Runs the browser of a browser sandbox:
#
#     browser run      runs headless Chromium with a fresh profile until it is killed
#     browser ready    waits until that Chromium listens
#     browser trust    adds the certificate authorities in PEM on standard input; call it before the first page
#
# Chromium listens on loopback, port 9222, for the host that controls it. It reaches everything else through the
# sandbox's proxy: it resolves no names, and requests of pages to loopback go to the proxy too. The policies in the image
# (/etc/chromium/policies) turn off other features.
set -eu

port=9222
proxy=127.0.0.1:3128
nowhere=http://127.0.0.1:1 # for requests to Google that Chromium makes despite these flags: the gateway refuses it
home=/tmp/browser # on a tmpfs, removed with the sandbox
store=sql:$home/.pki/nssdb

run() {
	mkdir -m 0700 -p "$home/.pki/nssdb" "$home/tmp"
	export HOME="$home" TMPDIR="$home/tmp"
	certutil -N -d "$store" --empty-password
	# Chromium's sandbox needs user namespaces or setuid, which are not available here, so it is off. The outer sandbox
	# remains. /dev/shm is small, so shared memory is on the tmpfs.
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

# ready uses bash, which can check the port without another program.
ready() {
	until bash -c "exec 3<>/dev/tcp/127.0.0.1/$port" 2>/dev/null; do
		sleep 0.05
	done
}

# trust splits the input, because certutil reads one certificate per file.
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
