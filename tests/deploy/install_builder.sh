#!/bin/sh
# Installs buildah, and makes DIRECTORY/base: a small root file system with Debian's Python, which looks like the image
# python:slim to a Containerfile. For root on Debian; tests of images are skipped elsewhere. Does nothing if it is there.
#
#   tests/deploy/install_builder.sh .venv-images
set -eu
directory=$1
base=$directory/base
stamp=$directory/.made
test "$stamp" -nt "$0" && exit
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0
echo "making a base image in $directory (once; about half a minute)"

export DEBIAN_FRONTEND=noninteractive
command -v buildah >/dev/null || {
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends buildah >/dev/null
}
rm -rf "$directory"
mkdir -p "$directory/packages/partial" "$base/usr/bin" "$base/usr/sbin" "$base/usr/lib" "$base/usr/lib64"
absolute=$(cd "$directory" && pwd)
touch "$directory/status" # as if no package was installed, so that all dependencies are fetched
apt-get install -qq -y --download-only --no-install-recommends -o APT::Sandbox::User=root \
    -o Dir::State::status="$absolute/status" -o Dir::Cache::archives="$absolute/packages" \
    python3-venv coreutils dash passwd login libc-bin base-passwd sed >/dev/null
for name in bin sbin lib lib64; do ln -s "usr/$name" "$base/$name"; done
for package in "$directory"/packages/*.deb; do dpkg-deb -x "$package" "$base"; done
rm -rf "$directory/packages" "$base/usr/share/doc" "$base/usr/share/man" "$base/usr/share/locale"
cp "$base/usr/share/base-passwd/passwd.master" "$base/etc/passwd"
cp "$base/usr/share/base-passwd/group.master" "$base/etc/group"
mkdir -p "$base/proc" "$base/sys" "$base/dev" "$base/tmp" "$base/root" "$base/run"
chmod 1777 "$base/tmp"
chroot "$base" /usr/bin/python3 -m venv /usr/local # `python` and `pip`, as in python:slim
printf '[global]\nno-index = true\nfind-links = /wheels\nroot-user-action = ignore\n' >"$base/etc/pip.conf"
touch "$stamp"
