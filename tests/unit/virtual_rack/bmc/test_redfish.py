# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The Redfish service without its sockets."""

from __future__ import annotations

import base64
import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import pytest

from virtual_rack.bmc.messages import REGISTRY
from virtual_rack.bmc.redfish import RedfishService, Request, Response
from virtual_rack.bmc.resources import RESET_TYPES, TABLE
from virtual_rack.bmc.state import Options
from virtual_rack.testing import PASSWORD, USERNAME, LightBmc, light_bmc

SYSTEM = "/redfish/v1/Systems/1"
RESET = f"{SYSTEM}/Actions/ComputerSystem.Reset"
SESSIONS = "/redfish/v1/SessionService/Sessions"
ADMIN = (USERNAME, PASSWORD)
OPERATOR = ("operator", "Operate-1")
VIEWER = ("viewer", "View-1")


class Client:
    """Sends requests to the service of a BMC, as one of its accounts or as nobody."""

    def __init__(self, light: LightBmc, credentials: tuple[str, str] | None = ADMIN) -> None:
        self.light = light
        self.credentials = credentials
        self.service = RedfishService(light.bmc, TABLE)

    def send(
        self, method: str, target: str, body: object = None, **headers: str | None
    ) -> Response:
        named = {name.replace("_", "-"): value for name, value in headers.items() if value}
        if self.credentials and "x-auth-token" not in named and "authorization" not in named:
            encoded = base64.b64encode(":".join(self.credentials).encode()).decode()
            named["authorization"] = f"Basic {encoded}"
        content = b""
        if body is not None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            named.setdefault("content-type", "application/json")
        return self.service.handle(Request(method, target, named, content, "127.0.0.1:9"))

    def get(self, target: str, **headers: str | None) -> Any:
        response = self.send("GET", target, **headers)
        assert response.status == 200, response.body
        return response.body


@pytest.fixture
def client(light: LightBmc) -> Client:
    return Client(light)


def error_of(response: Response) -> str:
    """The message of an error, checked to be a complete error body of DSP0266."""
    assert isinstance(response.body, dict)
    error = response.body["error"]
    (info,) = error["@Message.ExtendedInfo"]
    assert error["code"] == info["MessageId"]
    assert error["message"] == info["Message"]
    assert "%1" not in info["Message"]
    assert info["@odata.type"].startswith("#Message.v1_")
    assert info["MessageSeverity"] in ("OK", "Warning", "Critical")
    assert info["Resolution"]
    registry, _, name = info["MessageId"].rpartition(".")
    assert registry == REGISTRY
    return str(name)


def links(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in ("@odata.id", "target"):
                yield inner
            else:
                yield from links(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from links(inner)


@pytest.mark.parametrize("firmware", ["uefi", "bios"])
def test_every_link_leads_to_a_resource_that_says_who_it_is(firmware: str) -> None:
    with light_bmc(
        firmware=firmware, disks=[{"bus": bus} for bus in ("nvme", "virtio", "scsi", "sata")]
    ) as light:
        client = Client(light)
        client.send("POST", SESSIONS, {"UserName": USERNAME, "Password": PASSWORD})
        seen, waiting = set(), ["/redfish/v1"]
        while waiting:
            path = waiting.pop()
            if path in seen or "/Actions/" in path:
                continue
            seen.add(path)
            response = client.send("GET", path)
            assert response.status == 200, path
            body = response.body
            assert isinstance(body, dict)
            assert body["@odata.id"] == path
            assert body["@odata.type"].startswith("#")
            assert body["@odata.etag"] == response.headers["ETag"]
            assert "Name" in body
            assert "rel=describedby" in response.headers["Link"]
            if "Members" in body:
                assert body["Members@odata.count"] == len(body["Members"])
            else:
                assert path == "/redfish/v1" or body["Id"] == path.rpartition("/")[2]
            waiting += links(body)
        patterns = [row for row in TABLE.rows.values() if row.schema]
        unreached = [
            row.pattern
            for row in patterns
            if not any(row.expression.fullmatch(path) for path in seen)
        ]
        without_uefi = ["/redfish/v1/Systems/{system}/SecureBoot"]
        assert unreached == (without_uefi if firmware == "bios" else [])


def test_what_it_reports_is_what_the_machine_is_made_of(client: Client) -> None:
    hardware = client.light.machine.hardware()
    system = client.get(SYSTEM)
    assert system["UUID"] == hardware.uuid
    assert system["SerialNumber"] == hardware.serial_number
    assert system["MemorySummary"]["TotalSystemMemoryGiB"] == hardware.memory_bytes / 2**30
    assert system["ProcessorSummary"]["LogicalProcessorCount"] == hardware.cpu.threads
    nics = [
        client.get(path)
        for path in links(client.get(f"{SYSTEM}/EthernetInterfaces"))
        if path.rpartition("/")[2] != "EthernetInterfaces"
    ]
    assert [nic["MACAddress"].lower() for nic in nics] == [nic.mac for nic in hardware.nics]
    drives = []
    for storage in client.get(f"{SYSTEM}/Storage")["Members"]:
        for link in client.get(storage["@odata.id"])["Drives"]:
            drives.append(client.get(link["@odata.id"]))
    assert [(d["SerialNumber"], d["CapacityBytes"], d["BlockSizeBytes"]) for d in drives] == [
        (d.serial_number, d.size_bytes, d.logical_sector_bytes) for d in hardware.disks
    ]
    assert [d["Protocol"] for d in drives] == ["NVMe", "SAS"]
    assert [d["MediaType"] for d in drives] == ["SSD", "HDD"]
    wwn = hardware.disks[1].wwn
    assert wwn is not None
    assert drives[1]["Identifiers"][0]["DurableName"] == wwn[2:].upper()


def test_secure_boot_is_told_as_it_is() -> None:
    with light_bmc(secure_boot=True) as light:
        body = Client(light).get(f"{SYSTEM}/SecureBoot")
        assert body["SecureBootEnable"] is True
        assert body["SecureBootCurrentBoot"] == "Enabled"


@pytest.mark.parametrize(
    "path",
    ["/redfish", "/redfish/v1", "/redfish/v1/", "/redfish/v1/odata", "/redfish/v1/$metadata"],
)
def test_the_entry_is_open_to_everybody(light: LightBmc, path: str) -> None:
    assert Client(light, None).send("GET", path).status == 200


def test_metadata_names_every_schema_in_use(light: LightBmc) -> None:
    text = Client(light, None).get("/redfish/v1/$metadata")
    namespaces = {
        element.get("Namespace")
        for element in ET.fromstring(text).iter()
        if "Include" in element.tag
    }
    schemas = {row.schema.rpartition(".")[0] for row in TABLE.rows.values() if row.schema}
    assert schemas <= namespaces


@pytest.mark.parametrize(
    "path", [SYSTEM, SESSIONS, "/redfish/v1/Managers", "/redfish/v1/AccountService", "/nowhere"]
)
def test_everything_else_asks_for_a_login(light: LightBmc, path: str) -> None:
    response = Client(light, None).send("GET", path)
    assert response.status == 401
    assert error_of(response) == "NoValidSession"
    assert response.headers["WWW-Authenticate"].startswith("Basic ")


@pytest.mark.parametrize(
    "header", ["Basic !!!", "Basic", "Bearer x", "Basic " + base64.b64encode(b"admin").decode()]
)
def test_a_header_that_is_no_login_is_refused(light: LightBmc, header: str) -> None:
    assert Client(light, None).send("GET", SYSTEM, authorization=header).status == 401


def test_a_wrong_password_is_refused_and_not_journaled(light: LightBmc) -> None:
    response = Client(light, (USERNAME, "wrong-canary")).send("GET", SYSTEM)
    assert response.status == 401
    assert error_of(response) == "ResourceAtUriUnauthorized"
    body = {"UserName": USERNAME, "Password": "wrong-canary"}
    assert Client(light, None).send("POST", SESSIONS, body).status == 401
    text = light.journal_path.read_text()
    assert "canary" not in text
    assert light.journal()[-1]["request"]["body"] == {"UserName": USERNAME, "Password": "***"}
    assert light.journal()[-1]["user"] is None


@pytest.mark.parametrize("path", [SESSIONS, f"{SESSIONS}/Members"])
def test_a_session_lives_from_login_to_logout(light: LightBmc, path: str) -> None:
    nobody = Client(light, None)
    opened = nobody.send("POST", path, {"UserName": USERNAME, "Password": PASSWORD})
    assert opened.status == 201
    token, location = opened.headers["X-Auth-Token"], opened.headers["Location"]
    assert isinstance(opened.body, dict)
    assert opened.body["@odata.id"] == location
    assert token not in json.dumps(opened.body)
    assert nobody.get(location, x_auth_token=token)["UserName"] == USERNAME
    assert light.open_sessions() == 1
    assert nobody.send("DELETE", location, x_auth_token=token).status == 204
    assert light.open_sessions() == 0
    gone = nobody.send("GET", SYSTEM, x_auth_token=token)
    assert (gone.status, error_of(gone)) == (401, "NoValidSession")
    assert token not in light.journal_path.read_text()
    assert {entry["session"] for entry in light.journal()} == {"1", None}


def test_nobody_closes_the_session_of_another_but_an_administrator(light: LightBmc) -> None:
    opened = Client(light, None).send(
        "POST", SESSIONS, {"UserName": "operator", "Password": "Operate-1"}
    )
    location = opened.headers["Location"]
    for method in ("GET", "DELETE"):
        refused = Client(light, VIEWER).send(method, location)
        assert (refused.status, error_of(refused)) == (403, "InsufficientPrivilege")
    assert Client(light, ADMIN).send("DELETE", location).status == 204


@pytest.mark.parametrize("body", [{}, {"UserName": "admin"}, {"UserName": 1, "Password": "x"}])
def test_an_incomplete_login_says_what_is_wrong(light: LightBmc, body: object) -> None:
    response = Client(light, None).send("POST", SESSIONS, body)
    assert response.status == 400
    assert error_of(response) in ("PropertyMissing", "PropertyValueTypeError")


@pytest.mark.parametrize(("credentials", "may"), [(ADMIN, True), (OPERATOR, True), (VIEWER, False)])
def test_the_role_decides_who_changes_power_and_boot(
    light: LightBmc, credentials: tuple[str, str], may: bool
) -> None:
    client = Client(light, credentials)
    boot = {"Boot": {"BootSourceOverrideTarget": "Pxe", "BootSourceOverrideEnabled": "Once"}}
    assert client.send("PATCH", SYSTEM, boot).status == (200 if may else 403)
    assert client.send("POST", RESET, {"ResetType": "On"}).status == (204 if may else 403)
    assert light.power_effects() == (["power: off→on"] if may else [])
    assert client.get(SYSTEM)["PowerState"] == ("On" if may else "Off")


def test_accounts_of_others_are_for_administrators(light: LightBmc) -> None:
    accounts = "/redfish/v1/AccountService/Accounts"
    everyone = Client(light, ADMIN).get(accounts)
    assert everyone["Members@odata.count"] == 3
    viewer = Client(light, VIEWER)
    (own,) = viewer.get(accounts)["Members"]
    assert viewer.get(own["@odata.id"])["UserName"] == "viewer"
    assert viewer.get(own["@odata.id"])["Password"] is None
    assert viewer.send("GET", f"{accounts}/2").status == 403
    assert viewer.send("GET", f"{accounts}/99").status == 404


@pytest.mark.parametrize("kind", sorted(RESET_TYPES))
def test_every_advertised_reset_type_is_accepted(client: Client, kind: str) -> None:
    client.send("POST", RESET, {"ResetType": "On"})
    advertised = client.get(SYSTEM)["Actions"]["#ComputerSystem.Reset"]
    assert kind in advertised["ResetType@Redfish.AllowableValues"]
    assert client.send("POST", advertised["target"], {"ResetType": kind}).status == 204


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "ActionParameterMissing"),
        ({"ResetType": "Explode"}, "ActionParameterValueNotInList"),
        ({"ResetType": None}, "ActionParameterValueTypeError"),
        ({"ResetType": "On", "Delay": 1}, "ActionParameterUnknown"),
        (b"{", "MalformedJSON"),
        (b"[]", "MalformedJSON"),
        (b"\xff", "MalformedJSON"),
    ],
)
def test_a_wrong_reset_changes_nothing_and_says_why(
    client: Client, body: object, message: str
) -> None:
    response = client.send("POST", RESET, body)
    assert (response.status, error_of(response)) == (400, message)
    assert client.light.power_effects() == []


@pytest.mark.parametrize("kind", ["ForceRestart", "GracefulRestart", "PowerCycle"])
def test_restarting_a_machine_that_is_off_is_a_conflict(client: Client, kind: str) -> None:
    response = client.send("POST", RESET, {"ResetType": kind})
    assert (response.status, error_of(response)) == (409, "ResourceInStandby")
    assert client.get(SYSTEM)["PowerState"] == "Off"


def test_boot_settings_change_part_by_part_and_are_read_back(client: Client) -> None:
    def boot() -> tuple[str, ...]:
        found = client.get(SYSTEM)["Boot"]
        names = ("Target", "Enabled", "Mode")
        return tuple(found[f"BootSourceOverride{name}"] for name in names)

    assert boot() == ("None", "Disabled", "UEFI")
    for part, wanted in (
        ({"BootSourceOverrideTarget": "Pxe"}, ("Pxe", "Disabled", "UEFI")),
        ({"BootSourceOverrideEnabled": "Continuous"}, ("Pxe", "Continuous", "UEFI")),
        ({"BootSourceOverrideMode": "Legacy"}, ("Pxe", "Continuous", "Legacy")),
        ({"BootSourceOverrideTarget": "Hdd"}, ("Hdd", "Continuous", "Legacy")),
    ):
        response = client.send("PATCH", SYSTEM, {"Boot": part})
        assert response.status == 200
        assert boot() == wanted
    assert client.light.effects()[-1] == "boot override: disk continuous bios"


@pytest.mark.parametrize(
    ("body", "message", "related"),
    [
        ({}, "EmptyJSON", None),
        ({"Boot": 1}, "PropertyValueTypeError", "/Boot"),
        ({"PowerState": "On"}, "PropertyNotWritable", "/PowerState"),
        ({"Colour": "red"}, "PropertyUnknown", "/Colour"),
        ({"Boot": {"Shoe": 1}}, "PropertyUnknown", "/Boot/Shoe"),
        (
            {"Boot": {"BootSourceOverrideTarget": "Floppy"}},
            "PropertyValueNotInList",
            "/Boot/BootSourceOverrideTarget",
        ),
        (
            {"Boot": {"BootSourceOverrideMode": 1}},
            "PropertyValueTypeError",
            "/Boot/BootSourceOverrideMode",
        ),
        (
            {"Boot": {"BootSourceOverrideTarget": "Pxe", "BootSourceOverrideEnabled": "Never"}},
            "PropertyValueNotInList",
            "/Boot/BootSourceOverrideEnabled",
        ),
    ],
)
def test_a_wrong_boot_setting_changes_nothing_and_names_the_property(
    client: Client, body: object, message: str, related: str | None
) -> None:
    before = client.get(SYSTEM)
    response = client.send("PATCH", SYSTEM, body)
    assert (response.status, error_of(response)) == (400, message)
    assert isinstance(response.body, dict)
    info = response.body["error"]["@Message.ExtendedInfo"][0]
    assert info.get("RelatedProperties") == ([related] if related else None)
    assert client.get(SYSTEM) == before


def test_a_change_with_an_old_etag_is_refused(client: Client) -> None:
    old = client.get(SYSTEM)["@odata.etag"]
    boot = {"Boot": {"BootSourceOverrideTarget": "Pxe", "BootSourceOverrideEnabled": "Once"}}
    changed = client.send("PATCH", SYSTEM, boot, if_match=old)
    assert changed.status == 200
    assert isinstance(changed.body, dict)
    new = changed.headers["ETag"]
    assert new != old
    assert changed.body["@odata.etag"] == new
    again = client.send(
        "PATCH", SYSTEM, {"Boot": {"BootSourceOverrideTarget": "Hdd"}}, if_match=old
    )
    assert (again.status, error_of(again)) == (412, "PreconditionFailed")
    assert client.get(SYSTEM)["Boot"]["BootSourceOverrideTarget"] == "Pxe"
    assert client.send("PATCH", SYSTEM, boot, if_match=f'"other", {new}').status == 200
    assert client.send("PATCH", SYSTEM, boot, if_match="*").status == 200


def test_a_bmc_can_insist_on_if_match() -> None:
    with light_bmc(options=Options(require_if_match=True)) as light:
        client = Client(light)
        boot = {"Boot": {"BootSourceOverrideTarget": "Pxe"}}
        refused = client.send("PATCH", SYSTEM, boot)
        assert (refused.status, error_of(refused)) == (428, "PreconditionRequired")
        etag = client.get(SYSTEM)["@odata.etag"]
        assert client.send("PATCH", SYSTEM, boot, if_match=etag).status == 200


def test_an_unchanged_resource_is_not_sent_again(client: Client) -> None:
    etag = client.get(SYSTEM)["@odata.etag"]
    cached = client.send("GET", SYSTEM, if_none_match=etag)
    assert (cached.status, cached.body, cached.headers["ETag"]) == (304, None, etag)
    client.send("POST", RESET, {"ResetType": "On"})
    assert client.send("GET", SYSTEM, if_none_match=etag).status == 200


def test_the_clock_of_the_manager_does_not_change_its_etag(client: Client) -> None:
    manager = "/redfish/v1/Managers/bmc"
    body = client.get(manager)
    assert body["DateTime"]
    assert client.send("GET", manager, if_none_match=body["@odata.etag"]).status == 304


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", SYSTEM, {"GET", "HEAD", "PATCH"}),
        ("PUT", "/redfish/v1", {"GET", "HEAD"}),
        ("GET", RESET, {"POST"}),
        ("PATCH", SESSIONS, {"GET", "HEAD", "POST"}),
        ("OPTIONS", "/redfish/v1/Chassis/1", {"GET", "HEAD"}),
    ],
)
def test_a_method_that_is_not_there_gets_the_list_of_those_that_are(
    client: Client, method: str, path: str, allowed: set[str]
) -> None:
    response = client.send(method, path)
    assert (response.status, error_of(response)) == (405, "OperationNotAllowed")
    assert set(response.headers["Allow"].split(", ")) == allowed


@pytest.mark.parametrize("suffix", ["/Systems/2", "/Systems/2/Storage", "/Nothing", "/Chassis/1/x"])
def test_what_is_not_there_is_404(client: Client, suffix: str) -> None:
    for method in ("GET", "PATCH"):
        response = client.send(method, f"/redfish/v1{suffix}", {} if method == "PATCH" else None)
        assert response.status in (404, 405)
        assert method == "PATCH" or error_of(response) == "ResourceMissingAtURI"


def test_resetting_a_system_that_is_not_there_is_404(client: Client) -> None:
    path = RESET.replace("/1/", "/2/")
    assert client.send("POST", path, {"ResetType": "On"}).status == 404
    assert client.light.power_effects() == []


def test_an_unknown_query_is_not_ignored(client: Client) -> None:
    refused = client.send("GET", f"{SYSTEM}?$expand=.")
    assert (refused.status, error_of(refused)) == (501, "QueryNotSupported")
    assert client.send("GET", f"{SYSTEM}?whatever=1").status == 200


def test_another_odata_version_is_refused(client: Client) -> None:
    assert client.send("GET", SYSTEM, odata_version="4.0").status == 200
    assert client.send("GET", SYSTEM, odata_version="3.0").status == 412


def test_a_body_that_is_not_json_is_refused_by_its_type(client: Client) -> None:
    response = client.send("POST", RESET, {"ResetType": "On"}, content_type="text/plain")
    assert response.status == 415
    assert client.light.power_effects() == []


def test_every_answer_has_the_headers_of_the_protocol(client: Client) -> None:
    for path in (SYSTEM, "/redfish/v1/Nothing"):
        headers = client.send("GET", path).headers
        assert headers["OData-Version"] == "4.0"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Content-Type"] == "application/json;charset=utf-8"


def test_the_journal_has_one_line_for_every_request_with_its_effect(client: Client) -> None:
    client.get(SYSTEM)
    client.send("POST", RESET, {"ResetType": "On"})
    client.send("POST", RESET, {"ResetType": "On"})
    client.send("POST", RESET, {"ResetType": "Explode"})
    lines = [entry for entry in client.light.journal() if entry["protocol"] == "redfish"]
    assert [(e["request"]["method"], e["effect"], e["status"], e["user"]) for e in lines] == [
        ("GET", None, 200, USERNAME),
        ("POST", "power: off→on", 204, USERNAME),
        ("POST", None, 204, USERNAME),
        ("POST", None, 400, USERNAME),
    ]
    assert lines[1]["request"] == {"method": "POST", "path": RESET, "body": {"ResetType": "On"}}


def test_a_failure_inside_is_an_error_body_and_not_the_end_of_the_service(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> str:
        raise RuntimeError("wire cut")

    monkeypatch.setattr(client.light.machine, "power_state", broken)
    response = client.send("GET", SYSTEM)
    assert (response.status, error_of(response)) == (500, "InternalError")
    monkeypatch.undo()
    assert client.send("GET", SYSTEM).status == 200
