#!/usr/bin/python
# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_stream
short_description: Write a disk image from the network to the root disk
version_added: 0.1.0
description:
  - Streams a raw disk image, plain or compressed, to the disk that the hints choose. The bytes are
    counted, hashed, decompressed and written as they arrive; nothing is stored in between.
  - Ranges of zeroes are not sent to a disk that can zero them by itself.
  - The first MiB and the last MiB of the disk are written last, and only if size and SHA-256 are
    right. A short, long, corrupt or wrong stream, and a loss of power at any moment, leave no
    partition table at either end of the disk.
  - The backup GPT is moved to the end of the disk.
  - The work runs detached on the machine; the task follows it and prints its progress.
  - Proxy settings of the environment are not used.
options:
  url:
    description:
      - Where the image is, by V(http), V(https) or V(file) (a file on the machine).
      - Redirects are followed within the scheme only; the O(headers) go to the first host only.
      - Credentials belong into O(headers), not into the URL.
    type: str
    required: true
  sha256:
    description: SHA-256 of the bytes that are served, compressed or not.
    type: str
    required: true
  size_bytes:
    description: Number of bytes that are served, compressed or not.
    type: int
  raw_size_bytes:
    description: Size of the image after decompression.
    type: int
  compression:
    description:
      - How the image is compressed. V(auto) goes by the suffix of the URL's path,
        C(.gz), C(.xz) or C(.zst).
    type: str
    choices: [auto, none, gz, xz, zst]
    default: auto
  sector_bytes:
    description: Logical sector size of the disks that the image was made for.
    type: int
    choices: [512, 4096]
    default: 512
  root_disk:
    description:
      - Hints that choose the disk; it must fit all of them, and be the only one that does.
      - Keys are V(serial_number), V(wwn), V(model), V(size_bytes), V(min_size_bytes),
        V(max_size_bytes), V(rotational), V(by_path) and V(name).
      - Without hints the machine must have exactly one disk.
    type: dict
    default: {}
  ca_path:
    description: File with the CA certificates for V(https), on the machine.
    type: path
  ca_pem:
    description: CA certificates for V(https), in PEM.
    type: str
  headers:
    description: Headers of the request, such as C(Authorization).
    type: dict
    default: {}
  stall_seconds:
    description: How long the server may send nothing before the stream fails.
    type: float
    default: 30
extends_documentation_fragment:
  - barewright.metal.operation
attributes:
  check_mode:
    support: full
    description: >-
      Chooses the disk, asks the server for the image's size and compares the sizes; reads none of
      the image and writes nothing.
  diff_mode:
    support: full
    description: Shows the partition table before, and the digest of the image.
  idempotent:
    support: partial
    description: >-
      A finished O(operation_id) returns its result and changes nothing. Under another id the
      image is written again.
author:
  - Barewright contributors (@barewright)
"""

EXAMPLES = r"""
- name: Write the image to the disk with this serial number
  barewright.metal.image_stream:
    url: https://images.example.org/debian-13.raw.zst
    sha256: "{{ deploy_image.sha256 }}"
    raw_size_bytes: 2147483648
    ca_path: /etc/barewright/images-ca.pem
    root_disk:
      serial_number: S4EVNX0R123456
    operation_id: image-2026-01-31-alpha
    timeout_seconds: 1800
"""

RETURN = r"""
operation_id:
  description: The id under which a further task attaches to the same work.
  returned: always
  type: str
device:
  description: Path of the disk on the machine.
  returned: success
  type: str
  sample: /dev/nvme0n1
root_disk:
  description: Identity of the disk, as a row of an inventory.
  returned: success
  type: dict
received_bytes:
  description: Bytes that were served.
  returned: success and not in check mode
  type: int
raw_size_bytes:
  description: Bytes of the image after decompression.
  returned: success and not in check mode
  type: int
written_bytes:
  description: Bytes between the two ends that were sent to the disk.
  returned: success and not in check mode
  type: int
skipped_bytes:
  description: Bytes of zeroes that the disk was told to make instead.
  returned: success and not in check mode
  type: int
bytes_per_second:
  description: Image bytes per second, over everything.
  returned: success and not in check mode
  type: int
seconds:
  description: How long the whole took.
  returned: success and not in check mode
  type: float
partition_table:
  description: Kind of the image's partition table, V(gpt) or V(dos).
  returned: success and not in check mode
  type: str
partitions_reread:
  description: Whether the kernel took over the new partition table.
  returned: success and not in check mode
  type: bool
fault:
  description: What went wrong, with C(code), C(wanted), C(found), C(cure) and C(details).
  returned: failure
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.barewright.metal.plugins.module_utils import operation
from ansible_collections.barewright.metal.plugins.module_utils.block_device import BlockDevice
from ansible_collections.barewright.metal.plugins.module_utils.deadline import Deadline
from ansible_collections.barewright.metal.plugins.module_utils.disks import read_disks
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.module_utils.hints import find_root_disk
from ansible_collections.barewright.metal.plugins.module_utils.image import (
    check_fit,
    describe_table,
    stream_image,
)
from ansible_collections.barewright.metal.plugins.module_utils.image_source import (
    COMPRESSIONS,
    ImageRequest,
    ImageSource,
)

ARGUMENT_SPEC: dict[str, Any] = {
    "url": {"type": "str", "required": True},
    "sha256": {"type": "str", "required": True},
    "size_bytes": {"type": "int"},
    "raw_size_bytes": {"type": "int"},
    "compression": {"type": "str", "choices": list(COMPRESSIONS), "default": "auto"},
    "sector_bytes": {"type": "int", "choices": [512, 4096], "default": 512},
    "root_disk": {"type": "dict", "default": {}},
    "ca_path": {"type": "path"},
    "ca_pem": {"type": "str"},
    "headers": {"type": "dict", "default": {}, "no_log": True},
    "stall_seconds": {"type": "float", "default": 30},
    **operation.argument_spec(),
}


def request_of(parameters: dict[str, Any]) -> ImageRequest:
    """The request that the module's parameters describe."""
    return ImageRequest(
        url=parameters["url"],
        sha256=parameters["sha256"],
        size_bytes=parameters["size_bytes"],
        raw_size_bytes=parameters["raw_size_bytes"],
        compression=parameters["compression"],
        sector_bytes=parameters["sector_bytes"],
        ca_path=parameters["ca_path"],
        ca_pem=parameters["ca_pem"],
        headers={str(name): str(value) for name, value in parameters["headers"].items()},
        stall_seconds=parameters["stall_seconds"],
    )


class Stream:
    """One streaming of a request to the disk that the hints choose."""

    def __init__(self, module: AnsibleModule) -> None:
        self._module = module
        self._deadline = Deadline(module.params["timeout_seconds"])
        self._result: dict[str, Any] = {}
        self.request = request_of(module.params)
        self.request.check()

    def choose_disk(self) -> str:
        """Choose the disk and return its path. Faults: those of the hints, DISK_BUSY."""
        disk = find_root_disk(read_disks(), self._module.params["root_disk"])
        if disk.holders:
            raise Fault(
                "DISK_BUSY",
                wanted=f"to write {disk.path}",
                found=", ".join(str(holder) for holder in disk.holders),
            )
        self._result = {"changed": True, "device": disk.path, "root_disk": disk.identity()}
        if self._module._diff:
            self._result["diff"] = self._diff(disk.path)
        return disk.path

    def plan(self) -> dict[str, Any]:
        """What would be done; raises what can be known to go wrong without reading the image."""
        path = self.choose_disk()
        with ImageSource(self.request) as source, BlockDevice(path, writable=False) as device:
            check_fit(device, self.request, source)
        return self._result

    def start(self) -> dict[str, Any]:
        """Start the operation, attach to it, or return what it left."""
        parameters, request = self._module.params, self.request
        return operation.start(
            parameters["operation_id"] or operation.new_id("image_stream"),
            {
                "url": request.public_url,
                "sha256": request.sha256.lower(),
                "size_bytes": request.size_bytes,
                "raw_size_bytes": request.raw_size_bytes,
                "compression": request.actual_compression,
                "sector_bytes": request.sector_bytes,
                "root_disk": parameters["root_disk"],
            },
            self._work,
            label="image_stream",
            prepare=self._prepare,
            work_ended=parameters["work_ended"],
            no_log_values=self._module.no_log_values,
        )

    def _prepare(self) -> None:
        self.choose_disk()

    def _work(self, progress: operation.Progress) -> dict[str, Any]:
        def report(received: int, expected: int | None, text: str) -> None:
            progress.update(phase="writing", done_bytes=received, total_bytes=expected, text=text)

        path = self._result["device"]
        with ImageSource(self.request) as source, BlockDevice(path, writable=True) as device:
            return {**self._result, **stream_image(device, source, self._deadline, report)}

    def _diff(self, path: str) -> dict[str, str]:
        with BlockDevice(path, writable=False) as device:
            before = describe_table(device)
        return {
            "before": before,
            "after": f"image of {self.request.public_url}\nsha256 {self.request.sha256}\n",
            "before_header": path,
            "after_header": path,
        }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        stream = Stream(module)
        if module.check_mode:
            module.exit_json(**stream.plan())
        started = stream.start()
        module.exit_json(changed=not started["operation"]["attached"], **started)
    except Fault as fault:
        module.fail_json(**fault.to_result())


if __name__ == "__main__":
    main()
