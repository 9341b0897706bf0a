#!/bin/sh
# Installs QEMU and what builds the test guest, and builds it in DIRECTORY/guest. For root on Debian; tests of real VMs
# are skipped elsewhere. Does nothing if all of it is there.
#
#   tests/vms/install_vms.sh .venv-vms
set -eu
directory=$1
scripts=$(dirname "$0")/../../src/forewarn/lab/vms/guest
stamp=$directory/.made
test "$stamp" -nt "$0" && test "$stamp" -nt "$scripts/build.sh" &&
    test "$stamp" -nt "$scripts/init" && test "$stamp" -nt "$scripts/poll" && exit
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0

packages="qemu-system-x86 busybox-static cpio lz4 iproute2 binutils"
missing=
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -n "$missing" ] || [ ! -f "$directory/guest/vmlinux" ]; then
    echo "installing QEMU and a kernel for test guests into $directory (once; about a minute)"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086
    [ -z "$missing" ] || apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
sh "$scripts/build.sh" "$directory/guest"
touch "$stamp"
