#!/bin/sh
# Turns a Debian root into the root of a sandbox. The Dockerfile and build.sh run it inside the root, as root, so that
# both produce the same content.
#
#     setup.sh PACKAGES     installs the packages listed in the file PACKAGES
#
# It skips installed packages. If all are installed, it uses no network.
set -eu

missing=
while read -r name _; do
	case $name in
	'' | '#'*) continue ;;
	esac
	dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || missing="$missing $name"
done <"$1"

if [ -n "$missing" ]; then
	export DEBIAN_FRONTEND=noninteractive
	apt-get -o Acquire::Retries=3 update -qq
	# shellcheck disable=SC2086 # a list of names
	apt-get -o Acquire::Retries=3 install -qq -y --no-install-recommends $missing
fi

if ! id user >/dev/null 2>&1; then
	groupadd --gid 1000 user
	useradd --uid 1000 --gid 1000 --create-home --home-dir /home/user --shell /bin/bash user
fi

mkdir -p /workspace /run/orchestrator
chown 1000:1000 /workspace
chmod 0755 /workspace /run/orchestrator

# The root is read-only for commands, so pip installs into the home directory, and cannot break the system's packages.
printf '[global]\nbreak-system-packages = true\ndisable-pip-version-check = true\n' >/etc/pip.conf

# Commands run with no_new_privs, so setuid and setgid bits have no effect: remove them.
find / -xdev -type f -perm /6000 -exec chmod u-s,g-s {} +

# Remove documentation. Copyright files stay, because the licences require them.
find /usr/share/doc -type f ! -name copyright -delete
find /usr/share/doc -depth -type d -empty -delete
find /usr/share/doc -xtype l -delete
rm -rf /usr/share/man/* /usr/share/info/* /usr/share/locale/* /usr/share/lintian \
	/var/cache/apt/* /var/cache/debconf/*-old /var/lib/apt/lists/* /var/log/* \
	/etc/passwd- /etc/group- /etc/shadow- /etc/gshadow-
