# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The network inside the rack's namespace: bridge, addresses and the IPv6 router advertisement.

Nothing leads out of it: there is no interface but the bridge, the machines' taps and the loopback,
and nothing is forwarded. DHCP, TFTP, HTTP and DNS are left to whoever serves the machines.
"""

from __future__ import annotations

import ipaddress
import select
import socket
import struct
import threading
import time
from pathlib import Path

from virtual_rack.spec import NetworkSpec, RackSpec
from virtual_rack.tap import run_ip

# RFC 4861: message types, the addresses of all nodes and all routers, and the hop limit that proves
# that a message comes from the same link.
_ROUTER_SOLICITATION = 133
_ROUTER_ADVERTISEMENT = 134
_ALL_NODES = "ff02::1"
_ALL_ROUTERS = "ff02::2"
_HOP_LIMIT = 255
_ADVERTISE_EVERY_SECONDS = 10.0
# linux/icmpv6.h: which message types the socket does not pass on, one bit each.
_ICMPV6_FILTER = 1
_BRIDGE_MAC = "02:77:00:00:00:01"


def build(spec: RackSpec) -> None:
    """Make the network of a rack in the current network namespace, which must be empty.

    The BMC addresses go on the loopback interface: machines on the bridge reach them all the same,
    for Linux answers ARP for any address of its own, and hundreds of them are no burden for a DHCP
    server that listens on every address of the bridge.

    Raises:
        NetworkError: the kernel refused.
    """
    network = spec.network
    for forwarding in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        Path("/proc/sys/net", forwarding).write_text("0", encoding="ascii")
    run_ip(
        [
            "link set dev lo up",
            f"link add name {network.bridge} address {_BRIDGE_MAC} type bridge "
            "stp_state 0 forward_delay 0 mcast_snooping 0",
        ]
    )
    # Nobody else is there to have the address: no machine shall wait until that has been found out.
    Path(f"/proc/sys/net/ipv6/conf/{network.bridge}/accept_dad").write_text("0", encoding="ascii")
    addresses = sorted({server.bmc.address for server in spec.servers})
    run_ip(
        [
            f"address add {network.address} dev {network.bridge}",
            f"address add {network.address6} dev {network.bridge} nodad",
            f"link set dev {network.bridge} up",
            *(
                f"address add {address}/32 dev lo"
                for address in addresses
                if not address.is_loopback
            ),
        ]
    )


def advertisement(prefix: ipaddress.IPv6Network, mac: str) -> bytes:
    """A router advertisement (RFC 4861, 4.2) without checksum, which the kernel fills in.

    It offers the prefix for stateless addresses and no default route, for there is none. Without an
    advertisement iPXE waits 13 seconds for it at every boot.
    """
    header = struct.pack(
        "!BBHBBHII", _ROUTER_ADVERTISEMENT, 0, 0, 64, 0, 0, 0, 0
    )  # hop limit 64, no DHCPv6, router lifetime 0, reachable and retransmission time unspecified
    source_address = struct.pack("!BB6s", 1, 1, bytes.fromhex(mac.replace(":", "")))
    on_link_and_autonomous = 0xC0
    prefix_information = struct.pack(
        "!BBBBIII16s",
        3,
        4,
        prefix.prefixlen,
        on_link_and_autonomous,
        86400,
        43200,
        0,
        prefix.network_address.packed,
    )
    return header + source_address + prefix_information


class Advertiser:
    """Sends the advertisement regularly and to whoever asks for it, until the process ends."""

    def __init__(self, network: NetworkSpec) -> None:
        self._message = advertisement(network.address6.network, _BRIDGE_MAC)
        self._bridge = network.bridge
        self._index = socket.if_nametoindex(network.bridge)
        self._socket = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
        blocked = bytearray(b"\xff" * 32)
        blocked[_ROUTER_SOLICITATION // 8] &= ~(1 << _ROUTER_SOLICITATION % 8)
        self._socket.setsockopt(socket.IPPROTO_ICMPV6, _ICMPV6_FILTER, bytes(blocked))
        for option in (socket.IPV6_MULTICAST_HOPS, socket.IPV6_UNICAST_HOPS):
            self._socket.setsockopt(socket.IPPROTO_IPV6, option, _HOP_LIMIT)
        self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, self._index)
        group = socket.inet_pton(socket.AF_INET6, _ALL_ROUTERS) + struct.pack("@I", self._index)
        self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, network.bridge.encode())

    def start(self) -> None:
        threading.Thread(target=self._run, name="advertiser", daemon=True).start()

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            remaining = due - time.monotonic()
            if remaining > 0:
                readable, _, _ = select.select([self._socket], [], [], remaining)
                if not readable:
                    continue
                self._socket.recv(1500)
            else:
                due = time.monotonic() + _ADVERTISE_EVERY_SECONDS
            try:
                # An answer goes to all nodes too (RFC 4861, 6.2.6), for the one that asks may have
                # no address yet.
                self._socket.sendto(self._message, (_ALL_NODES, 0, 0, self._index))
            except OSError:
                # No machine is plugged in, so that the bridge has no carrier and no address of its
                # own; the next solicitation or the next round will find it.
                continue
