#!/bin/sh
# Puts the Linux kernel that qemu-numa boots into BUILD/linux, unpacked from Debian's package and not installed: nothing
# outside BUILD changes. Idempotent. usage: linux_setup.sh BUILD. Where the package cannot be had the test is skipped.
set -eu
into=$1/linux
[ ! -f "$into/vmlinuz" ] || exit 0
mkdir -p "$into"
into=$(cd "$into" && pwd)
cd "$into"
# The package that the metapackage stands for.
name=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '$1 == "Depends:" { print $2; exit }') || name=
if [ -z "$name" ] || ! apt-get -o Acquire::Retries=3 download "$name" >download.log 2>&1; then
    echo "linux_setup.sh: apt-get knows no linux-image-cloud-amd64 to download; qemu-numa will be skipped" >&2
    exit 0
fi
dpkg -x "$name"_*.deb .
mv boot/vmlinuz-* vmlinuz
rm -rf "$name"_*.deb boot lib usr
echo "linux_setup.sh: $name is in $into"
