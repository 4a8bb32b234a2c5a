#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
#
# machine.sh FOLDER SSHD: the first process of a machine that is only namespaces (mount and pid).
# It has one disk, /dev/sda (FOLDER/disk), a /run of its own, and an sshd that comes back when it
# ends. Killing this process is the loss of power.
set -eu
folder=$1
sshd=$2

mount --make-rprivate /
mount -t proc proc /proc

# The disk, as the kernel would describe it.
size=$(stat -c %s "$folder/disk")
mount -t tmpfs tmpfs /sys/block
mkdir -p /sys/block/sda/device /sys/block/sda/queue
echo $((size / 512)) >/sys/block/sda/size
echo 0 >/sys/block/sda/ro
echo 0 >/sys/block/sda/queue/rotational
echo 512 >/sys/block/sda/queue/logical_block_size
echo 512 >/sys/block/sda/queue/physical_block_size
echo NAMESPACE-1 >/sys/block/sda/device/serial

mkdir -p "$folder/dev"
mount -t tmpfs tmpfs "$folder/dev"
for node in null zero full random urandom tty; do
    : >"$folder/dev/$node"
    mount --bind "/dev/$node" "$folder/dev/$node"
done
mkdir "$folder/dev/pts" "$folder/dev/shm"
mount --bind /dev/pts "$folder/dev/pts"
: >"$folder/dev/sda"
mount --bind "$folder/disk" "$folder/dev/sda"
mount --rbind "$folder/dev" /dev

# What the owner of this computer starts with each shell is not this machine's.
if [ -e "${HOME:-/root}/.bashrc" ]; then
    mount --bind /dev/null "${HOME:-/root}/.bashrc"
fi

mount -t tmpfs tmpfs /run
mkdir -p /run/sshd
if ! grep -q ^sshd: /etc/passwd; then # an sshd that was only unpacked brings no user
    cp /etc/passwd "$folder/passwd"
    echo sshd:x:64001:65534::/run/sshd:/usr/sbin/nologin >>"$folder/passwd"
    mount --bind "$folder/passwd" /etc/passwd
fi
while :; do
    "$sshd" -D -e -f "$folder/sshd_config" || sleep 0.5
done
