#!/bin/sh
# Installs QEMU and what builds the test guests, and builds them in DIRECTORY/guest: the lab's, and one with a resource
# agent of Pacemaker. For root on Debian; tests of real VMs are skipped elsewhere. Does nothing if all of it is there.
#
#   tests/vms/install_vms.sh .venv-vms
set -eu
directory=$1
here=$(dirname "$0")
scripts=$here/../../src/forewarn/lab/vms/guest
foreign=$here/../crash_test/foreign
stamp=$directory/.made
sources="$0 $scripts/build.sh $scripts/init $scripts/poll $here/guest/build_agent.sh $here/guest/poll
    $foreign/fetch_resource_agents.sh $foreign/cluster_manager $foreign/cluster_command"
# shellcheck disable=SC2086
[ ! -f "$stamp" ] || [ "$(find $sources -newer "$stamp")" ] || exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0

packages="qemu-system-x86 busybox-static cpio lz4 iproute2 nftables binutils"
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
[ -d "$directory/agents/trixie" ] || "$foreign/fetch_resource_agents.sh" "$directory/agents" trixie
[ -d "$directory/agents/trixie" ] || exit 0
"$here/guest/build_agent.sh" "$directory/guest" "$directory/agents/trixie"
touch "$stamp"
