#!/bin/sh
# What the tests do not use is left out: Go fetches modules here, and compiles none.
set -eu

rm -rf /usr/lib/go-1.19/pkg/linux_* /usr/lib/go-1.19/pkg/tool/*/* /usr/share/go-1.19/src/* /usr/share/go-1.19/test
