# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

from build_ramdisk import kept_modules, load_order, parse_modules_dep

MODULES_DEP = """\
kernel/drivers/gpu/drm/drm.ko:
kernel/drivers/gpu/drm/ast/ast.ko: kernel/drivers/gpu/drm/drm.ko
kernel/drivers/net/hyperv.ko: kernel/drivers/gpu/drm/drm.ko kernel/lib/crc.ko
kernel/fs/overlayfs/overlay.ko:
kernel/fs/isofs/isofs.ko.xz: kernel/drivers/cdrom/cdrom.ko
kernel/drivers/cdrom/cdrom.ko: kernel/lib/crc.ko
kernel/lib/crc.ko:
kernel/lib/test_bpf.ko:
"""


def test_a_kept_module_keeps_what_it_depends_on() -> None:
    kept = kept_modules(parse_modules_dep(MODULES_DEP), ["drivers/gpu/", "lib/test_"])
    assert "kernel/drivers/gpu/drm/ast/ast.ko" not in kept
    assert "kernel/drivers/gpu/drm/drm.ko" in kept
    assert "kernel/lib/crc.ko" in kept
    assert "kernel/lib/test_bpf.ko" not in kept


def test_modules_load_after_what_they_need() -> None:
    order = load_order(parse_modules_dep(MODULES_DEP), ["isofs", "overlay"])
    assert order == [
        "kernel/lib/crc.ko",
        "kernel/drivers/cdrom/cdrom.ko",
        "kernel/fs/isofs/isofs.ko.xz",
        "kernel/fs/overlayfs/overlay.ko",
    ]
