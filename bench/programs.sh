#!/bin/sh
# Installs the programs that `make bench` needs, nginx and wrk, from Debian's packages. Does nothing if they are there.
# Packages must not start daemons.
set -eu
missing=
for program in nginx wrk taskset; do
    command -v "$program" >/dev/null || missing="$missing $program"
done
test -z "$missing" && exit

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing:$missing; install them, or run make bench once as root on Debian, which installs them" >&2
    exit 1
fi
echo "installing the programs for the benchmark (once; about half a minute)"
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
apt-get update -qq
apt-get install -y -qq --no-install-recommends nginx-light wrk util-linux >/dev/null
