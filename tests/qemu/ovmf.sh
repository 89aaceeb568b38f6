# shellcheck shell=bash
# ovmf.sh: $ovmf, the firmware of guests, or the test is skipped. For scripts that have skip().
ovmf=
for f in /usr/share/ovmf/OVMF.fd /usr/share/OVMF/OVMF.fd /usr/share/qemu/OVMF.fd; do [ -z "$ovmf" ] && [ -f "$f" ] && ovmf=$f; done
[ -n "$ovmf" ] || skip "needs OVMF: apt-get install ovmf"
