#!/bin/sh
# Makes DIRECTORY/initramfs-agent: the lab's guest in DIRECTORY/initramfs with Debian's Python and a resource agent of
# Pacemaker, which polls and approves there instead of the lab's script. Packages are only unpacked. On Debian.
#
#   build_agent.sh DIRECTORY UNPACKED_RESOURCE_AGENTS
set -eu
directory=$1
agents=$2
here=$(cd "$(dirname "$0")" && pwd)
cluster=$here/../../crash_test/foreign
root=$(mktemp -d)
packages=$(mktemp -d)
trap 'rm -rf "$root" "$packages"' EXIT

python=$(apt-cache depends python3-minimal | sed -n 's/.*Depends: \(python3[0-9.]*\)-minimal/\1/p')
(cd "$packages" && apt-get download -qq -o APT::Sandbox::User=root \
    "$python-minimal" "lib$python-minimal" "lib$python-stdlib" libc6 libexpat1 zlib1g)
for package in "$packages"/*.deb; do dpkg-deb -x "$package" "$root"; done

# Debian 12 has its libraries in /lib, Debian 13 in /usr/lib.
for name in lib lib64; do [ -e "$root/$name" ] || ln -s "usr/$name" "$root/$name"; done
# Only what an agent imports, as byte code: TCG would need seconds to compile it at each call.
rm -rf "$root/etc" "$root/usr/share" "$root"/usr/lib/x86_64-linux-gnu/gconv "$root"/lib/x86_64-linux-gnu/gconv
(cd "$root/usr/lib/$python" && rm -rf config-* test idlelib lib2to3 distutils ensurepip pydoc_data unittest sqlite3 dbm \
    curses multiprocessing asyncio xml xmlrpc tkinter venv wsgiref lib-dynload/_ssl.* lib-dynload/_hashlib.* \
    lib-dynload/_test* lib-dynload/_codecs_*)
ln -s "$python" "$root/usr/bin/python3"
chroot "$root" "/usr/bin/$python" -m compileall -q -b "/usr/lib/$python"
find "$root/usr/lib/$python" -name '*.py' -delete
find "$root/usr/lib/$python" -name __pycache__ -prune -exec rm -r {} +
find "$root" \( -name '*.a' -o -name '*.o' \) -delete

mkdir -p "$root/bin" "$root/foreign" "$root/package/usr/lib/ocf/resource.d/heartbeat" "$root/package/usr/lib/ocf/lib"
cp "$cluster/cluster_manager" "$cluster/cluster_command" "$root/foreign/"
cp "$agents"/usr/lib/ocf/resource.d/heartbeat/azure-events-az "$root/package/usr/lib/ocf/resource.d/heartbeat/"
mkdir "$root/package/usr/lib/ocf/lib/heartbeat"
cp "$agents/usr/lib/ocf/lib/heartbeat/ocf.py" "$root/package/usr/lib/ocf/lib/heartbeat/"
chroot "$root" "/usr/bin/$python" -m compileall -q /package/usr/lib/ocf/lib/heartbeat
cp "$here/poll" "$root/bin/poll"

# The kernel unpacks one archive after the other, each aligned to 4 bytes; one that is not compressed is the fastest.
cp "$directory/initramfs" "$directory/initramfs-agent.new"
truncate -s %4 "$directory/initramfs-agent.new"
(cd "$root" && find . | cpio -o -H newc -R 0:0 --quiet) >>"$directory/initramfs-agent.new"
mv "$directory/initramfs-agent.new" "$directory/initramfs-agent"
