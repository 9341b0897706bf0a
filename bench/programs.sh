#!/bin/sh
# Install what `make bench` measures with, from Debian's packages: nginx and wrk. Quick when they are there. Packages that
# would start a daemon are kept from doing so.
set -eu
missing=
for program in nginx wrk taskset; do
    command -v "$program" >/dev/null || missing="$missing $program"
done
test -z "$missing" && exit

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing:$missing; install them, or call make bench once as root on Debian, which does so" >&2
    exit 1
fi
echo "installing what figures are measured with (once; about half a minute)"
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
apt-get update -qq
apt-get install -y -qq --no-install-recommends nginx-light wrk util-linux >/dev/null
