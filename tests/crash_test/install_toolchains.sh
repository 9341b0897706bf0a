#!/bin/sh
# Install what the handlers in examples/handlers are written for: curl, jq, Node and Go, from Debian's packages. Tests of
# a handler whose toolchain is missing are skipped with a reason.
set -eu
export DEBIAN_FRONTEND=noninteractive
is_updated=''
for pair in curl:curl jq:jq node:nodejs go:golang-go; do
    command -v "${pair%%:*}" >/dev/null && continue
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "no ${pair%%:*}: this is not Debian, or you are not root; the tests that need it are skipped"
        continue
    fi
    [ -n "$is_updated" ] || apt-get update -qq || true
    is_updated=1
    apt-get install -y -qq --no-install-recommends "${pair##*:}" >/dev/null ||
        echo "no ${pair##*:}: Debian does not have it; the tests that need it are skipped"
done
