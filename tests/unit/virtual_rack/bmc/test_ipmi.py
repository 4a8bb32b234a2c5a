# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The IPMI server without its socket, asked by a client of its own kind."""

from __future__ import annotations

import struct
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.virtual_rack.bmc.console import Console, message, plain
from virtual_rack.bmc import ipmi
from virtual_rack.bmc.ipmi import IpmiServer, IpmiSession
from virtual_rack.bmc.state import Options
from virtual_rack.testing import PASSWORD, USERNAME, LightBmc, light_bmc, wait_until

POWER = (0x00, 0x02)
STATUS = (0x00, 0x01)


@pytest.fixture
def server(light: LightBmc) -> IpmiServer:
    return IpmiServer(light.bmc)


@pytest.fixture
def console(server: IpmiServer) -> Console:
    console = Console(server, USERNAME, PASSWORD)
    console.log_in()
    return console


def dropped(light: LightBmc) -> list[str]:
    requests = [entry["request"] for entry in light.journal()]
    return [entry["reason"] for entry in requests if entry.get("name") == "dropped packet"]


@pytest.mark.parametrize("suite", [3, 17])
def test_both_cipher_suites_log_in_and_command(light: LightBmc, suite: int) -> None:
    console = Console(IpmiServer(light.bmc), USERNAME, PASSWORD, suite)
    console.log_in()
    assert console.ask(*POWER, b"\x01").code == 0
    assert console.ask(*STATUS).data[0] & 1 == 1
    assert light.power_effects() == ["power: off→on"]


@pytest.mark.parametrize(
    ("algorithms", "status"),
    [
        ((2, 1, 1), ipmi.INVALID_AUTHENTICATION),
        ((1, 2, 1), ipmi.INVALID_INTEGRITY),
        ((1, 1, 2), ipmi.INVALID_CONFIDENTIALITY),
        ((3, 1, 1), ipmi.NO_SUITE_MATCH),
    ],
)
def test_a_suite_that_is_not_offered_is_refused(
    server: IpmiServer, algorithms: tuple[int, ...], status: int
) -> None:
    assert Console(server, USERNAME, PASSWORD).open(algorithms) == status


def test_a_client_that_leaves_the_choice_gets_the_strongest_suite(server: IpmiServer) -> None:
    console = Console(server, USERNAME, PASSWORD)
    assert console.open((None, None, None)) == 0
    assert console.chosen == (3, 4, 1)


def test_a_bmc_can_be_without_suite_17() -> None:
    with light_bmc(options=Options(cipher_suites=(3,))) as light:
        server = IpmiServer(light.bmc)
        assert Console(server, USERNAME, PASSWORD, 17).open() == ipmi.INVALID_AUTHENTICATION
        Console(server, USERNAME, PASSWORD, 3).log_in()


@pytest.mark.parametrize("suite", [3, 17])
def test_a_wrong_password_is_answered_and_opens_nothing(light: LightBmc, suite: int) -> None:
    server = IpmiServer(light.bmc)
    console = Console(server, USERNAME, "wrong", suite)
    assert (console.open(), console.rakp_1()) == (0, 0)
    # By this the client finds out that the BMC has another password.
    assert console.bmc_code != console.expected_bmc_code()
    assert console.rakp_3() == ipmi.INVALID_INTEGRITY_CHECK
    assert server.session_count() == 0
    assert console.rakp_3() == ipmi.INVALID_SESSION
    assert light.effects() == []


def test_a_console_that_finds_the_bmc_wrong_ends_the_handshake(server: IpmiServer) -> None:
    console = Console(server, USERNAME, PASSWORD)
    assert (console.open(), console.rakp_1()) == (0, 0)
    assert console.rakp_3(status=ipmi.INVALID_INTEGRITY_CHECK) == ipmi.INVALID_INTEGRITY_CHECK
    assert server.session_count() == 0


@pytest.mark.parametrize("name", ["nobody", ""])
def test_an_unknown_user_is_told_so(server: IpmiServer, name: str) -> None:
    console = Console(server, name, "")
    assert (console.open(), console.rakp_1()) == (0, ipmi.UNAUTHORIZED_NAME)


def test_a_name_that_is_too_long_is_told_so(server: IpmiServer) -> None:
    console = Console(server, "x" * 17, "")
    assert (console.open(), console.rakp_1()) == (0, ipmi.INVALID_NAME_LENGTH)


@pytest.mark.parametrize(
    ("username", "password", "most"),
    [(USERNAME, PASSWORD, 4), ("operator", "Operate-1", 3), ("viewer", "View-1", 2)],
)
def test_nobody_gets_more_privilege_than_his_role(
    server: IpmiServer, username: str, password: str, most: int
) -> None:
    for privilege in range(most + 1, 5):
        console = Console(server, username, password)
        assert (console.open(), console.rakp_1(privilege)) == (0, ipmi.UNAUTHORIZED_ROLE)
    Console(server, username, password).log_in(most)
    console = Console(server, username, password)
    assert (console.open(), console.rakp_1(0)) == (0, ipmi.INVALID_ROLE)


def test_power_is_for_operators_and_only_after_they_raised_their_privilege(
    light: LightBmc, server: IpmiServer
) -> None:
    viewer = Console(server, "viewer", "View-1")
    viewer.log_in(2)
    assert viewer.ask(*STATUS).code == 0
    assert viewer.ask(*POWER, b"\x01").code == 0xD4
    assert viewer.ask(0x06, 0x3B, b"\x03").code == 0x81
    operator = Console(server, "operator", "Operate-1")
    assert (operator.open(), operator.rakp_1(3), operator.rakp_3()) == (0, 0, 0)
    assert operator.ask(*POWER, b"\x01").code == 0xD4
    assert light.power_effects() == []
    assert operator.ask(0x06, 0x3B, b"\x03").code == 0
    assert operator.ask(*POWER, b"\x01").code == 0
    assert light.power_effects() == ["power: off→on"]


def test_a_replayed_packet_is_not_carried_out_again(light: LightBmc, console: Console) -> None:
    console.ask(*POWER, b"\x01")
    packet = console.packet(message(*POWER, b"\x03", 9))
    assert console.send(packet) is not None
    assert console.send(packet) is None
    for number in range(40):
        console.ask(*STATUS)
        assert number or console.send(packet) is None
    assert console.send(packet) is None
    assert light.power_effects() == ["power: off→on", "power: reset"]
    assert set(dropped(light)) == {"sequence number used or outside the window"}


def test_a_client_that_missed_the_answer_gets_it_again_without_a_second_action(
    light: LightBmc, console: Console
) -> None:
    console.ask(*POWER, b"\x01")
    first = console.send(console.packet(message(*POWER, b"\x02", 9)))
    again = console.send(console.packet(message(*POWER, b"\x02", 9)))
    assert first is not None
    assert again is not None
    one, two = console.unpack(first), console.unpack(again)
    assert (one.code, one.data) == (two.code, two.data)
    assert two.session_sequence == one.session_sequence + 1
    assert light.power_effects() == ["power: off→on", "power: on→off→on"]
    assert (
        console.unpack(console.send(console.packet(message(*POWER, b"\x02", 10))) or b"").code == 0
    )
    assert light.power_effects()[2:] == ["power: on→off→on"]


def test_packets_may_overtake_each_other_inside_the_window(
    light: LightBmc, console: Console
) -> None:
    early = console.packet(message(*STATUS, b"", 20))
    late = console.packet(message(*STATUS, b"", 21))
    assert console.send(late) is not None
    assert console.send(early) is not None
    assert console.send(early) is None
    far = console.sequence + 16
    assert console.send(console.packet(message(*STATUS), sequence=far)) is None
    assert console.send(console.packet(message(*STATUS), sequence=far - 1)) is not None
    assert console.send(console.packet(message(*STATUS), sequence=0)) is None


def test_a_tampered_packet_has_no_effect(light: LightBmc, console: Console) -> None:
    command = message(*POWER, b"\x01", 9)
    assert console.send(console.packet(command, tag=1)) is None
    whole = bytearray(console.packet(command))
    whole[30] ^= 1
    assert console.send(bytes(whole)) is None
    assert console.send(console.packet(command, encrypted=False)) is None
    assert dropped(light) == ["integrity check failed"] * 3
    assert light.power_effects() == []
    # Nothing of this used up a sequence number.
    assert console.ask(*POWER, b"\x01").code == 0


@pytest.mark.parametrize("end", [b"\x00\x01", b"\x02\x02", b"\x10\x10", b"\xff\xff"])
def test_padding_that_is_not_as_it_must_be_has_no_effect(
    light: LightBmc, console: Console, end: bytes
) -> None:
    command = message(*POWER, b"\x01", 9)
    padded = command + bytes(-(len(command) + len(end)) % 16) + end
    assert console.send(console.packet(command, padded=padded)) is None
    assert dropped(light) == ["cannot be decrypted"]
    assert light.power_effects() == []


def test_a_command_outside_a_session_is_refused(light: LightBmc, server: IpmiServer) -> None:
    answer = server.handle(plain(0, message(*POWER, b"\x01")), "127.0.0.1:7")
    assert answer is not None
    assert answer[16 + 6] == 0xD4
    assert light.power_effects() == []


def test_a_session_closes_itself_and_only_an_administrator_closes_others(
    light: LightBmc, server: IpmiServer
) -> None:
    admin, operator = (
        Console(server, USERNAME, PASSWORD),
        Console(server, "operator", "Operate-1"),
    )
    operator.id += 1
    admin.log_in()
    operator.log_in(3)
    assert operator.ask(0x06, 0x3C, struct.pack("<I", admin.session_id)).code == 0xD4
    assert admin.ask(0x06, 0x3C, struct.pack("<I", 1)).code == 0x87
    assert admin.ask(0x06, 0x3C, struct.pack("<I", operator.session_id)).code == 0
    assert operator.send(operator.packet(message(*STATUS))) is None
    assert admin.ask(0x06, 0x3C, struct.pack("<I", admin.session_id)).code == 0
    assert admin.send(admin.packet(message(*STATUS))) is None
    assert server.session_count() == 0
    assert light.open_sessions() == 0


def test_a_session_ends_when_nobody_uses_it() -> None:
    with light_bmc(options=Options(ipmi_session_timeout_seconds=0.2)) as light:
        server = IpmiServer(light.bmc)
        console = Console(server, USERNAME, PASSWORD)
        console.log_in()
        for _ in range(6):
            time.sleep(0.05)
            assert console.ask(*STATUS).code == 0
        wait_until(lambda: server.session_count() == 0)
        assert console.send(console.packet(message(*STATUS))) is None
        assert light.open_sessions() == 0


def test_handshakes_are_limited() -> None:
    with light_bmc(options=Options(max_sessions=2)) as light:
        server = IpmiServer(light.bmc)
        consoles = [Console(server, USERNAME, PASSWORD) for _ in range(3)]
        assert [console.open() for console in consoles] == [0, 0, ipmi.NO_RESOURCES]


def test_a_repeated_handshake_message_gets_the_same_answer(server: IpmiServer) -> None:
    console = Console(server, USERNAME, PASSWORD)
    assert (console.open(), console.rakp_1()) == (0, 0)
    random = console.bmc_random
    assert console.rakp_1() == 0
    assert console.bmc_random == random
    assert (console.rakp_3(), console.rakp_3()) == (0, 0)
    assert server.session_count() == 1


@pytest.mark.parametrize(
    ("action", "effect_when_off", "effect_when_on"),
    [
        (0, 0, "power: on→off"),
        (1, "power: off→on", None),
        (2, 0xD5, "power: on→off→on"),
        (3, 0xD5, "power: reset"),
        (4, 0xCC, 0xCC),
        (5, 0, "power: button"),
    ],
)
def test_every_chassis_control_has_its_effect(
    light: LightBmc, console: Console, action: int, effect_when_off: object, effect_when_on: object
) -> None:
    for wanted in (effect_when_off, effect_when_on):
        before = len(light.power_effects())
        code = console.ask(*POWER, bytes([action])).code
        assert code == (wanted if isinstance(wanted, int) else 0)
        new = light.power_effects()[before:]
        assert new == ([wanted] if isinstance(wanted, str) else [])
        console.ask(*POWER, b"\x01")


def test_a_slow_machine_does_not_keep_the_client_waiting(
    light: LightBmc, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = threading.Event()
    start = light.machine.power_on

    def slow() -> None:
        assert started.wait(10)
        start()

    monkeypatch.setattr(light.machine, "power_on", slow)
    assert console.ask(*POWER, b"\x01").code == 0
    assert console.ask(*STATUS).data[0] & 1 == 0
    assert console.ask(*POWER, b"\x02").code == 0xC0
    assert light.power_effects() == []
    started.set()
    wait_until(lambda: light.power_effects() == ["power: off→on"])
    assert console.ask(*STATUS).data[0] & 1 == 1
    assert console.ask(*POWER, b"\x02").code == 0


@pytest.mark.parametrize(
    ("flags", "effect", "read_back"),
    [
        (b"\x80\x04", "boot override: pxe once bios", b"\x80\x04"),
        (b"\xa0\x04", "boot override: pxe once uefi", b"\xa0\x04"),
        (b"\xe0\x08", "boot override: disk continuous uefi", b"\xe0\x08"),
        (b"\xc0\x08", "boot override: disk continuous bios", b"\xc0\x08"),
        (b"\x80\x00", None, b"\x00\x00"),
        (b"\x00\x04", None, b"\x00\x00"),
    ],
)
def test_boot_flags_are_set_and_read_back(
    light: LightBmc, console: Console, flags: bytes, effect: str | None, read_back: bytes
) -> None:
    assert console.ask(0x00, 0x08, b"\x05" + flags + bytes(3)).code == 0
    assert light.journal()[-1]["effect"] == effect
    answer = console.ask(0x00, 0x09, b"\x05\x00\x00")
    assert answer.data == b"\x01\x05" + read_back + bytes(3)


def test_boot_flags_lapse_unless_the_client_says_they_shall_not(
    console: Console, light: LightBmc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("virtual_rack.bmc.commands.BOOT_FLAGS_LIFETIME_SECONDS", 0.05)
    console.ask(0x00, 0x08, b"\x05\xa0\x04\x00\x00\x00")
    assert light.bmc.boot_settings().expires_at is not None
    wait_until(lambda: str(light.bmc.boot_settings()) == "none")
    for keep in (b"\x03\x08", b""):
        if keep:
            console.ask(0x00, 0x08, keep)
            console.ask(0x00, 0x08, b"\x05\xa0\x04\x00\x00\x00")
        else:
            console.ask(0x00, 0x08, b"\x05\xe0\x04\x00\x00\x00")
        assert light.bmc.boot_settings().expires_at is None


def test_a_boot_device_that_is_not_there_is_refused(light: LightBmc, console: Console) -> None:
    assert console.ask(0x00, 0x08, b"\x05\x80\x3c\x00\x00\x00").code == 0xCC
    assert console.ask(0x00, 0x08, b"\x05\x80").code == 0xC7
    assert console.ask(0x00, 0x08, b"\x60\x00").code == 0x80
    assert str(light.bmc.boot_settings()) == "none"


def test_the_guid_is_the_uuid_of_the_machine(light: LightBmc, console: Console) -> None:
    wanted = uuid.UUID(light.machine.hardware().uuid)
    assert uuid.UUID(bytes_le=console.ask(0x06, 0x37).data) == wanted
    assert uuid.UUID(bytes_le=console.guid) == wanted


def test_fru_reads_in_pieces_are_the_whole(light: LightBmc, console: Console) -> None:
    (size,) = struct.unpack_from("<H", console.ask(0x0A, 0x10, b"\x00").data)
    content = b""
    while len(content) < size:
        answer = console.ask(0x0A, 0x11, struct.pack("<BHB", 0, len(content), 16))
        assert answer.data[0] == len(answer.data) - 1
        content += answer.data[1:]
    assert console.ask(0x0A, 0x11, struct.pack("<BHB", 0, size, 1)).code == 0xC9
    assert console.ask(0x0A, 0x11, struct.pack("<BHB", 0, 0, 255)).code == 0xCA
    assert console.ask(0x0A, 0x10, b"\x01").code == 0xCB
    for start in (8 * content[area] for area in (2, 3, 4)):
        area = content[start : start + 8 * content[start + 1]]
        assert sum(area) % 256 == 0
        assert light.machine.hardware().serial_number.encode() in area
    assert sum(content[:8]) % 256 == 0


def test_every_record_of_the_cipher_suites_is_listed(console: Console) -> None:
    records = console.ask(0x06, 0x54, b"\x0e\x00\x80").data
    assert records == bytes.fromhex("01 c003014181 c011034481")
    assert console.ask(0x06, 0x54, b"\x0e\x00\x81").data == b"\x01"


def test_what_it_does_not_know_is_an_invalid_command(light: LightBmc, console: Console) -> None:
    assert console.ask(0x2E, 0x99).code == 0xC1
    assert light.journal()[-1]["status"] == 0xC1


def test_a_presence_ping_gets_a_pong(server: IpmiServer) -> None:
    ping = bytes.fromhex("0600ff06 000011be 80 42 00 00")
    pong = server.handle(ping, "127.0.0.1:7")
    assert pong is not None
    assert pong[8:12] == bytes([0x40, 0x42, 0, 16])
    assert pong[20] == 0x81
    assert len(pong) == 28


@pytest.fixture(scope="module")
def patient_server() -> Iterator[IpmiServer]:
    with light_bmc() as light:
        yield IpmiServer(light.bmc)


@given(junk=st.binary(max_size=80))
def test_junk_never_hurts(patient_server: IpmiServer, junk: bytes) -> None:
    for packet in (junk, b"\x06\x00\xff\x07" + junk, b"\x06\x00\xff\x07\x06" + junk):
        patient_server.handle(packet, "127.0.0.1:7")
    for kind in (0, 0x10, 0x12, 0x14):
        patient_server.handle(plain(kind, junk), "127.0.0.1:7")
    assert patient_server.session_count() == 0


@given(numbers=st.lists(st.integers(1, 60), max_size=60))
def test_no_sequence_number_is_ever_taken_twice(numbers: list[int]) -> None:
    session = IpmiSession(1, 2, ipmi.SUITES[17], "c", 0.0)
    taken = [number for number in numbers if session.accept_sequence_number(number)]
    assert len(taken) == len(set(taken))


@given(start=st.integers(0, 2**32 - 1), steps=st.lists(st.integers(1, 15), max_size=30))
def test_a_client_that_counts_up_is_always_taken_even_over_the_end(
    start: int, steps: list[int]
) -> None:
    session = IpmiSession(1, 2, ipmi.SUITES[17], "c", 0.0, highest_received=start)
    number = start
    for step in steps:
        number = (number + step) & 0xFFFFFFFF
        assert session.accept_sequence_number(number) == (number != 0)
