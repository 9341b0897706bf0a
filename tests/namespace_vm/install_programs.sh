#!/bin/sh
# Fetches the programs that the tests run inside VMs: those of PyPI into a virtual environment in DIRECTORY, those of
# Debian with apt-get, as root. Packages with a daemon or a boot script are only unpacked in DIRECTORY, so that this
# machine never runs them. Does nothing if all programs are there. Tests skip programs that could not be fetched.
#
#   tests/namespace_vm/install_programs.sh .venv-real python3
set -eu
directory=$1
python=$2
unpacked="cloud-init waagent resource-agents"
installed="iproute2 nftables dnsmasq-base curl wget passt slirp4netns ruby facter ohai
    python3-configobj python3-distro python3-distutils python3-requests python3-setuptools python3-yaml"
pypi="opentelemetry-sdk opentelemetry-resource-detector-azure elastic-apm newrelic cloud-detect"

stamp=$directory/.fetched
test "$stamp" -nt "$0" && exit
echo "fetching programs that have the metadata address built in into $directory (once; about a minute)"

test -x "$directory/bin/python" || "$python" -m venv "$directory"
# shellcheck disable=SC2086
"$directory/bin/python" -m pip install --quiet --disable-pip-version-check $pypi

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $installed >/dev/null
    packages=$(mktemp -d)
    trap 'rm -rf "$packages"' EXIT
    # shellcheck disable=SC2086
    (cd "$packages" && apt-get download -qq -o APT::Sandbox::User=root $unpacked)
    for package in "$packages"/*.deb; do
        dpkg-deb -x "$package" "$directory/debian"
    done
fi
touch "$stamp"
