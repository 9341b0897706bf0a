#!/bin/sh
# Installs libvirt and its Python module into VENV. For root on Debian; tests of libvirt are skipped elsewhere. Does
# nothing if all of it is there. No daemon of the machine is used: tests start their own.
#
#   tests/vms/install_libvirt.sh .venv
set -eu
venv=$1
"$venv/bin/python" -c 'import libvirt' 2>/dev/null && command -v libvirtd >/dev/null && exit
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0

echo "installing libvirt (once; about a minute)"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends libvirt-daemon-system libvirt-daemon-driver-qemu libvirt-clients \
    libvirt-dev pkg-config gcc qemu-system-x86 qemu-utils >/dev/null
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check libvirt-python
