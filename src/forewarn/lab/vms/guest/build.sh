#!/bin/sh
# Makes DIRECTORY/vmlinux and DIRECTORY/initramfs: Debian's cloud kernel, uncompressed so that QEMU enters it directly,
# and BusyBox with the scripts beside this file. The kernel is only unpacked, never installed. On Debian.
#
#   build.sh DIRECTORY
set -eu
directory=$1
scripts=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$directory"
cd "$directory"

if [ ! -f vmlinux ]; then
    package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    rm -rf kernel packages && mkdir packages
    (cd packages && apt-get download -qq -o APT::Sandbox::User=root "$package")
    dpkg-deb -x packages/*.deb kernel
    # The compressed kernel is an LZ4 stream (magic number 02 21 4c 18) inside the boot image.
    offset=$(LC_ALL=C grep -obUaPm1 '\x02\x21\x4c\x18' kernel/boot/vmlinuz-* | head -n 1 | cut -d: -f1)
    tail -c "+$((offset + 1))" kernel/boot/vmlinuz-* | lz4 -q -d - vmlinux.new 2>/dev/null || test -s vmlinux.new
    mv vmlinux.new vmlinux
    rm -rf packages
fi

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/bin" "$root/dev" "$root/proc" "$root/sys" "$root/run" "$root/tmp" "$root/modules" "$root/etc/acpi/PWRF"
cp /bin/busybox "$root/bin/busybox"
for name in $(busybox --list); do [ "$name" = busybox ] || ln -s busybox "$root/bin/$name"; done
cp "$scripts/init" "$root/init"
cp "$scripts/poll" "$root/bin/poll"
chmod 755 "$root/init"
# Adds a module after those that it depends on, unless it is there or built into the kernel.
add_module() {
    set -- "$1" "$(find kernel/lib/modules -name "$1.ko")"
    if [ -z "$2" ] || [ -e "$root/modules/$1.ko" ]; then return 0; fi
    for needed in $(tr '\0' '\n' <"$2" | sed -n 's/^depends=//p' | tr ',' ' '); do add_module "$needed"; done
    strip --strip-debug -o "$root/modules/$1.ko" "$2" 2>/dev/null || cp "$2" "$root/modules/"
    echo "$1.ko" >>"$root/modules/order"
}
for module in virtio_pci virtio_blk virtio_net button evdev; do add_module "$module"; done
echo "EV_KEY 0x01 KEY_POWER 116 1 PWRF/00000080" >"$root/etc/acpi.map"
printf '#!/bin/sh\nexec /bin/poweroff -f\n' >"$root/etc/acpi/PWRF/00000080"
chmod 755 "$root/etc/acpi/PWRF/00000080"
(cd "$root" && find . | cpio -o -H newc -R 0:0 --quiet | gzip -1) >initramfs.new
mv initramfs.new initramfs
