# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils.bmc.interfaces import (
    NotYet,
    Unanswered,
)
from ansible_collections.barewright.metal.plugins.module_utils.bmc.redfish_connector import (
    RedfishConnector,
    other_tags,
)
from ansible_collections.barewright.metal.plugins.module_utils.bmc.target import Target
from ansible_collections.barewright.metal.plugins.module_utils.deadline import Deadline
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault

from .conftest import Answer, Request, ScriptedBmc

SESSIONS = "/redfish/v1/SessionService/Sessions"
SYSTEM = "/redfish/v1/Systems/1"
RESET = "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset"


def connect(target: Target, seconds: float = 10) -> RedfishConnector:
    return RedfishConnector(target, target.ports["redfish"], Deadline(seconds), lambda: None)


@pytest.fixture
def connector(scripted: ScriptedBmc) -> Iterator[RedfishConnector]:
    made = connect(scripted.target())
    made.login(SESSIONS)
    yield made
    made.logout()
    made.close()


def scripted_for(method: str, *answers: Answer | None) -> Callable[[Request], Answer | None]:
    """Answer requests of one method, not those about sessions, in this order."""
    left = list(answers)

    def script(request: Request) -> Answer | None:
        if request.method != method or "/Sessions" in request.path or not left:
            return None
        return left.pop(0)

    return script


def test_a_wrong_password_is_tried_exactly_once(scripted: ScriptedBmc) -> None:
    made = connect(scripted.target(password="wrong"))
    with pytest.raises(Fault) as caught:
        made.login(SESSIONS)
    made.logout()
    assert caught.value.code == "BMC_AUTH_FAILED"
    assert [each.method for each in scripted.requests] == ["POST"]


def test_logging_out_never_fails(scripted: ScriptedBmc, connector: RedfishConnector) -> None:
    scripted.script = lambda request: Answer(401) if request.method == "DELETE" else None
    connector.logout()


def test_an_expired_session_is_renewed_once_and_the_request_repeated(
    scripted: ScriptedBmc, connector: RedfishConnector
) -> None:
    scripted.sessions.clear()
    assert connector.get(SYSTEM).json()["Id"] == "1"
    assert scripted.opened == 2
    assert len(scripted.sessions) == 1


def test_a_session_that_is_refused_again_is_an_authentication_fault(
    scripted: ScriptedBmc, connector: RedfishConnector
) -> None:
    scripted.script = lambda request: Answer(401) if request.method == "GET" else None
    with pytest.raises(Fault) as caught:
        connector.get(SYSTEM)
    assert caught.value.code == "BMC_AUTH_FAILED"
    assert scripted.opened == 2


def test_a_missing_privilege_opens_no_second_session(
    scripted: ScriptedBmc, connector: RedfishConnector
) -> None:
    error = {"error": {"@Message.ExtendedInfo": [{"MessageId": "Base.1.0.InsufficientPrivilege"}]}}
    scripted.script = scripted_for("POST", Answer(403, error))
    with pytest.raises(Fault) as caught:
        connector.post(RESET, {"ResetType": "On"})
    assert caught.value.code == "BMC_PRIVILEGE_TOO_LOW"
    assert "InsufficientPrivilege" in caught.value.found
    assert scripted.opened == 1


def test_a_bmc_without_sessions_gets_basic_authentication(scripted: ScriptedBmc) -> None:
    def script(request: Request) -> Answer | None:
        if request.path == SESSIONS:
            return Answer(404)
        return Answer(body={"Id": "1"}) if "Authorization" in request.headers else Answer(401)

    scripted.script = script
    made = connect(scripted.target())
    made.login(SESSIONS)
    assert made.get(SYSTEM).json() == {"Id": "1"}


@pytest.mark.parametrize("status", [409, 429, 503])
def test_settling_is_not_yet_and_says_when_to_come_back(
    scripted: ScriptedBmc, connector: RedfishConnector, status: int
) -> None:
    scripted.script = scripted_for("POST", Answer(status, headers={"Retry-After": "7"}))
    with pytest.raises(NotYet) as caught:
        connector.post(RESET, {"ResetType": "On"})
    assert caught.value.retry_after_seconds == 7


def test_a_machine_in_post_is_not_yet_although_the_status_is_400(
    scripted: ScriptedBmc, connector: RedfishConnector
) -> None:
    message = {"MessageId": "iLO.2.14.UnableToModifyDuringSystemPOST"}
    error = {"error": {"@Message.ExtendedInfo": [message]}}
    scripted.script = scripted_for("PATCH", Answer(400, error))
    with pytest.raises(NotYet):
        connector.patch(SYSTEM, {"Boot": {}})


def test_a_lost_answer_to_a_command_is_not_sent_again(
    scripted: ScriptedBmc, connector: RedfishConnector
) -> None:
    scripted.script = scripted_for("POST", Answer(hang_up=True), Answer(hang_up=True))
    with pytest.raises(Unanswered):
        connector.post(RESET, {"ResetType": "ForceRestart"})
    assert len(scripted.sent("POST")) == 1


def test_a_lost_answer_to_a_question_is_an_unreachable_bmc(
    scripted: ScriptedBmc, connector: RedfishConnector
) -> None:
    scripted.script = scripted_for("GET", Answer(hang_up=True))
    with pytest.raises(Fault) as caught:
        connector.get(SYSTEM)
    assert caught.value.code == "BMC_UNREACHABLE"


def test_a_port_where_nobody_listens_is_an_unreachable_bmc_even_for_commands(
    scripted: ScriptedBmc,
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        made = connect(scripted.target(ports={"redfish": port}))
        with pytest.raises(Fault) as caught:
            made.post(RESET, {"ResetType": "On"})
    assert caught.value.code == "BMC_UNREACHABLE"


def test_a_silent_bmc_is_given_up_at_the_deadline(scripted: ScriptedBmc) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        made = connect(scripted.target(ports={"redfish": silent.getsockname()[1]}), seconds=1)
        started = time.monotonic()
        with pytest.raises(Fault) as caught:
            made.get("/redfish/v1/")
    assert caught.value.code == "BMC_UNREACHABLE"
    assert time.monotonic() - started < 4


def test_an_unknown_certificate_is_rejected(scripted: ScriptedBmc) -> None:
    made = connect(scripted.target(ca_path=None))
    with pytest.raises(Fault) as caught:
        made.get("/redfish/v1/")
    assert caught.value.code == "BMC_CERTIFICATE_REJECTED"
    assert scripted.requests == []


def test_a_certificate_for_another_name_is_rejected(scripted: ScriptedBmc) -> None:
    made = connect(scripted.target(address="localhost"))
    with pytest.raises(Fault) as caught:
        made.get("/redfish/v1/")
    assert caught.value.code == "BMC_CERTIFICATE_REJECTED"
    assert scripted.requests == []


def test_the_pinned_certificate_is_enough(scripted: ScriptedBmc) -> None:
    target = scripted.target(
        ca_path=None, address="localhost", tls_fingerprint=scripted.fingerprint
    )
    assert connect(target).get("/redfish/v1/").status_code == 200


def test_another_certificate_than_the_pinned_one_is_rejected_before_anything_is_sent(
    scripted: ScriptedBmc,
) -> None:
    made = connect(scripted.target(ca_path=None, tls_fingerprint="0" * 64))
    with pytest.raises(Fault) as caught:
        made.login(SESSIONS)
    assert caught.value.code == "BMC_CERTIFICATE_REJECTED"
    assert scripted.requests == []


def test_a_ca_file_that_is_not_there_is_named(scripted: ScriptedBmc) -> None:
    with pytest.raises(Fault) as caught:
        connect(scripted.target(ca_path="/nonexistent/ca.pem")).get("/redfish/v1/")
    assert caught.value.code == "INVALID_INPUT"
    assert "/nonexistent/ca.pem" in caught.value.found


@pytest.mark.parametrize("body", [b"<html>login</html>", b'{"Id": "1', b"\xff\xfe"])
def test_an_answer_that_is_no_json_is_a_fault(
    scripted: ScriptedBmc, connector: RedfishConnector, body: bytes
) -> None:
    scripted.script = scripted_for("GET", Answer(body=body, headers={"Content-Type": "text/html"}))
    with pytest.raises(Fault) as caught:
        connector.get(SYSTEM)
    assert caught.value.code == "BMC_ANSWER_MALFORMED"


def test_a_redirect_on_the_same_bmc_is_followed(
    scripted: ScriptedBmc, connector: RedfishConnector
) -> None:
    scripted.script = scripted_for("GET", Answer(308, headers={"Location": SYSTEM}))
    assert connector.get("/redfish/v1/Systems/1/").json()["Id"] == "1"


@pytest.mark.parametrize("elsewhere", ["https://127.0.0.2/redfish/v1/", "http://127.0.0.1/"])
def test_the_session_goes_to_no_other_host(
    scripted: ScriptedBmc, connector: RedfishConnector, elsewhere: str
) -> None:
    scripted.script = scripted_for("GET", Answer(302, headers={"Location": elsewhere}))
    with pytest.raises(Fault) as caught:
        connector.get(SYSTEM)
    assert caught.value.code == "BMC_REDIRECTED"


def test_a_command_is_never_redirected(scripted: ScriptedBmc, connector: RedfishConnector) -> None:
    scripted.script = scripted_for("POST", Answer(307, headers={"Location": RESET}))
    with pytest.raises(Fault) as caught:
        connector.post(RESET, {"ResetType": "On"})
    assert caught.value.code == "BMC_REDIRECTED"
    assert len(scripted.sent("POST")) == 1


def test_a_tag_that_is_demanded_is_fetched(
    scripted: ScriptedBmc, connector: RedfishConnector
) -> None:
    def script(request: Request) -> Answer | None:
        if request.method == "PATCH":
            return Answer(200 if request.headers.get("If-Match") == '"1"' else 428)
        if request.method == "GET":
            return Answer(body={}, headers={"ETag": '"1"'})
        return None

    scripted.script = script
    assert connector.patch(SYSTEM, {"Boot": {}}).status_code == 200


@pytest.mark.parametrize(
    ("given", "taken"), [('W/"1"', '"1"'), ('"1"', 'W/"1"'), ('""1""', '"1"'), ('"1"', None)]
)
def test_the_form_of_a_tag_that_the_bmc_takes_is_found(
    scripted: ScriptedBmc, connector: RedfishConnector, given: str, taken: str | None
) -> None:
    def script(request: Request) -> Answer | None:
        if request.method == "PATCH":
            return Answer(200 if request.headers.get("If-Match") == taken else 412)
        return Answer(body={}, headers={"ETag": given}) if request.method == "GET" else None

    scripted.script = script
    assert connector.patch(SYSTEM, {"Boot": {}}, etag=given).status_code == 200


@given(st.none() | st.text(max_size=6), st.none() | st.text(min_size=1, max_size=6))
def test_tags_to_try_are_few_and_new(fresh: str | None, tried: str | None) -> None:
    candidates = other_tags(fresh or None, tried)
    assert len(candidates) <= 3
    assert len(set(candidates)) == len(candidates)
    assert tried not in candidates


def test_a_task_is_followed_to_its_end(scripted: ScriptedBmc, connector: RedfishConnector) -> None:
    monitor = "/redfish/v1/TaskService/TaskMonitors/1"
    scripted.script = scripted_for(
        "POST", Answer(202, headers={"Location": monitor, "Retry-After": "0"})
    )
    steps = [
        Answer(202, {"TaskState": "Running"}, {"Retry-After": "0"}),
        Answer(200, {"TaskState": "Pending"}, {"Retry-After": "0"}),
        Answer(200, {"TaskState": "Completed"}),
    ]
    first = scripted.script

    def script(request: Request) -> Answer | None:
        return steps.pop(0) if request.path == monitor else first(request)

    scripted.script = script
    assert connector.post(RESET, {"ResetType": "On"}).status_code == 200
    assert steps == []


def test_a_task_that_vanished_counts_as_done(
    scripted: ScriptedBmc, connector: RedfishConnector
) -> None:
    headers = {"Location": "/redfish/v1/TaskService/TaskMonitors/gone", "Retry-After": "0"}
    scripted.script = scripted_for("POST", Answer(202, headers=headers))
    assert connector.post(RESET, {"ResetType": "On"}).status_code == 404


def test_a_task_that_failed_is_a_fault_with_its_messages(
    scripted: ScriptedBmc, connector: RedfishConnector
) -> None:
    monitor = "/redfish/v1/TaskService/TaskMonitors/1"
    body = {"TaskState": "Exception", "Messages": [{"Message": "no power supply"}]}

    def script(request: Request) -> Answer | None:
        if request.path == monitor:
            return Answer(200, body)
        if request.path == RESET:
            return Answer(202, headers={"Location": monitor, "Retry-After": "0"})
        return None

    scripted.script = script
    with pytest.raises(Fault) as caught:
        connector.post(RESET, {"ResetType": "On"})
    assert caught.value.code == "BMC_TASK_FAILED"
    assert "no power supply" in caught.value.found


def test_the_environment_changes_nothing_about_a_bmc(
    scripted: ScriptedBmc, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nonexistent")
    assert connect(scripted.target()).get("/redfish/v1/").status_code == 200
