# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The Redfish protocol (DSP0266): one request in, one response out, no sockets in here.

What resources exist and what they contain is the table in `virtual_rack.bmc.resources`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

from virtual_rack.bmc.journal import Caller
from virtual_rack.bmc.messages import RedfishError
from virtual_rack.bmc.state import Account, Bmc, MachineIsOffError, Session
from virtual_rack.machine import MachineError

JsonObject = dict[str, Any]
Ids = Mapping[str, str]

LOG = logging.getLogger(__name__)
MAX_BODY_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Request:
    """One HTTP request; the names in `headers` are lower case, `target` is as it was sent."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    client: str = ""

    @property
    def path(self) -> str:
        """The path without query and without a slash at the end."""
        return self.target.partition("?")[0].rstrip("/") or "/"


@dataclass
class Response:
    """One HTTP response; a dict is sent as JSON, a str as XML."""

    status: HTTPStatus
    headers: dict[str, str] = field(default_factory=dict)
    body: JsonObject | str | None = None

    def content(self) -> bytes:
        if self.body is None:
            return b""
        if isinstance(self.body, str):
            return self.body.encode()
        return json.dumps(self.body, indent=1).encode()


@dataclass
class Context:
    """What a resource function gets to know about the request it serves."""

    bmc: Bmc
    ids: Ids
    account: Account | None = None
    session: Session | None = None
    client: str = ""
    body: JsonObject = field(default_factory=dict)

    def has(self, *privileges: str) -> bool:
        """Whether the caller holds one of the privileges."""
        return self.account is not None and any(
            name in self.account.role.privileges for name in privileges
        )


@dataclass
class Outcome:
    """What a changing operation did: the effect for the journal, and what to answer.

    Without a body a PATCH answers with the changed resource and anything else with 204.
    """

    effect: str | None = None
    status: HTTPStatus | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: JsonObject | None = None
    session: Session | None = None


# A type variable keeps the exact type of a reader, which other readers may call.
Reader = Callable[[Context], JsonObject | str | None]
ReaderT = TypeVar("ReaderT", bound=Reader)
Operation = Callable[[Context], Outcome]
Permission = Callable[[Context], bool]


def privilege(*names: str) -> Permission:
    """Permits who holds one of the privileges."""
    return lambda context: context.has(*names)


def everybody(_context: Context) -> bool:
    """Permits even those who did not log in."""
    return True


_LOGIN = privilege("Login")


@dataclass
class Resource:
    """One row of the table: an address pattern and what can be done there.

    `schema` is the full type name ("ComputerSystem.v1_20_0.ComputerSystem"), None for answers that
    are no resource. A reader returns None when the ids name nothing.
    """

    pattern: str
    schema: str | None
    read: Reader | None = None
    may_read: Permission = _LOGIN
    operations: dict[str, tuple[Operation, Permission]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        literal = re.escape(self.pattern)
        self.expression = re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", literal))

    @property
    def methods(self) -> list[str]:
        reading = ["GET", "HEAD"] if self.read else []
        return reading + sorted(self.operations)


class Table:
    """All resources of a service; functions enter themselves by decorators."""

    def __init__(self) -> None:
        self.rows: dict[str, Resource] = {}

    def resource(
        self, pattern: str, schema: str | None = None, may_read: Permission | None = None
    ) -> Callable[[ReaderT], ReaderT]:
        """Enter the function that reads a resource."""

        def enter(read: ReaderT) -> ReaderT:
            row = self.rows.setdefault(pattern, Resource(pattern, schema))
            row.schema, row.read = schema, read
            if may_read:
                row.may_read = may_read
            return read

        return enter

    def operation(
        self, method: str, pattern: str, permission: Permission
    ) -> Callable[[Operation], Operation]:
        """Enter the function that carries out POST, PATCH, PUT or DELETE."""

        def enter(operation: Operation) -> Operation:
            row = self.rows.setdefault(pattern, Resource(pattern, None))
            row.operations[method] = (operation, permission)
            return operation

        return enter

    def find(self, path: str) -> tuple[Resource, Ids] | None:
        """The row of an address, one without ids before one with ids."""
        if path in self.rows:
            return self.rows[path], {}
        for row in self.rows.values():
            match = row.expression.fullmatch(path)
            if match:
                return row, match.groupdict()
        return None


class RedfishService:
    """Answers the requests to one BMC from a table of resources, and writes its journal."""

    def __init__(self, bmc: Bmc, table: Table) -> None:
        self._bmc = bmc
        self._table = table

    def handle(self, request: Request) -> Response:
        """Answer a request. Never raises: what goes wrong inside is a 500 with an error body."""
        context = Context(self._bmc, {}, client=request.client)
        outcome = Outcome()
        try:
            response, outcome = self._answer(request, context)
        except RedfishError as error:
            response = Response(error.status, error.headers, error.body())
        except MachineError as error:
            LOG.error("%s: %s", self._bmc.name, error)
            response = _internal_error(str(error))
        except Exception as error:
            LOG.exception("%s: %s %s", self._bmc.name, request.method, request.target)
            response = _internal_error(repr(error))
        response.headers = self._common_headers(response) | response.headers
        self._record(request, context, outcome, response)
        return response

    def _record(
        self, request: Request, context: Context, outcome: Outcome, response: Response
    ) -> None:
        session = context.session or outcome.session
        account = context.account or (session.account if session else None)
        entry: JsonObject = {"method": request.method, "path": request.target}
        if request.body:
            entry["body"] = context.body or None
        self._bmc.journal.write(
            Caller(
                "redfish",
                request.client,
                session.id if session else None,
                account.username if account else None,
            ),
            entry,
            effect=outcome.effect,
            status=int(response.status),
        )

    def _answer(self, request: Request, context: Context) -> tuple[Response, Outcome]:
        _check_version(request)
        found = self._table.find(request.path)
        if found is None:
            self._log_in(request, context)
            raise RedfishError("ResourceMissingAtURI", request.path)
        row, context.ids = found
        # HEAD is served as GET; the listener leaves the body out.
        method = "GET" if request.method == "HEAD" else request.method
        if method == "GET":
            permission = row.may_read
        elif method in row.operations:
            permission = row.operations[method][1]
        else:
            permission = row.may_read
        if permission is not everybody:
            self._log_in(request, context)
        if (method == "GET" and not row.read) or (method != "GET" and method not in row.operations):
            raise RedfishError("OperationNotAllowed", headers={"Allow": ", ".join(row.methods)})
        if any(part.startswith("$") for part in request.target.partition("?")[2].split("&")):
            raise RedfishError("QueryNotSupported")
        if not permission(context):
            raise RedfishError("InsufficientPrivilege")
        if method == "GET":
            return self._read(request, row, context), Outcome()
        return self._operate(request, row, context)

    def _log_in(self, request: Request, context: Context) -> None:
        """Find out who is calling; raises 401 when nobody proved to be anybody."""
        token = request.headers.get("x-auth-token")
        if token is not None:
            session = self._bmc.session_with_token(token)
            if session is None:
                raise RedfishError("NoValidSession", headers=_CHALLENGE)
            context.session, context.account = session, session.account
            return
        credentials = _basic_credentials(request.headers.get("authorization"))
        if credentials is None:
            raise RedfishError("NoValidSession", headers=_CHALLENGE)
        context.account = self._bmc.authenticate(*credentials)
        if context.account is None:
            raise RedfishError(
                "ResourceAtUriUnauthorized",
                request.path,
                "Invalid username or password",
                headers=_CHALLENGE,
            )

    def _read(self, request: Request, row: Resource, context: Context) -> Response:
        body, headers = self._representation(request.path, row, context)
        if etag := headers.get("ETag"):
            wanted = request.headers.get("if-none-match")
            if wanted is not None and _etag_matches(etag, wanted):
                return Response(HTTPStatus.NOT_MODIFIED, headers)
        return Response(HTTPStatus.OK, headers, body)

    def _representation(
        self, path: str, row: Resource, context: Context
    ) -> tuple[JsonObject | str, dict[str, str]]:
        assert row.read is not None
        body = row.read(context)
        if body is None:
            raise RedfishError("ResourceMissingAtURI", path)
        headers = {"Allow": ", ".join(row.methods)}
        if isinstance(body, dict) and row.schema:
            head = {"@odata.id": path, "@odata.type": f"#{row.schema}"}
            body = head | body
            etag = _etag(body)
            body["@odata.etag"] = etag
            headers["ETag"] = etag
            document = row.schema.rpartition(".")[0]
            headers["Link"] = (
                f"<http://redfish.dmtf.org/schemas/v1/{document}.json>; rel=describedby"
            )
        return body, headers

    def _operate(
        self, request: Request, row: Resource, context: Context
    ) -> tuple[Response, Outcome]:
        operation, _ = row.operations[request.method]
        if request.method in ("POST", "PATCH", "PUT"):
            context.body = _json_body(request)
        if row.read and request.method in ("PATCH", "PUT", "DELETE"):
            # Also makes a 404 of ids that name nothing.
            _, headers = self._representation(request.path, row, context)
            self._check_precondition(request, headers.get("ETag", ""))
        try:
            outcome = operation(context)
        except MachineIsOffError:
            raise RedfishError("ResourceInStandby") from None
        headers = dict(outcome.headers)
        body: JsonObject | str | None = outcome.body
        if body is None and request.method == "PATCH":
            body, fresh = self._representation(request.path, row, context)
            headers = fresh | headers
        if body is None:
            return Response(outcome.status or HTTPStatus.NO_CONTENT, headers), outcome
        return Response(outcome.status or HTTPStatus.OK, headers, body), outcome

    def _check_precondition(self, request: Request, etag: str) -> None:
        wanted = request.headers.get("if-match")
        if wanted is None:
            if self._bmc.options.require_if_match and request.method != "DELETE":
                raise RedfishError("PreconditionRequired")
        elif not _etag_matches(etag, wanted):
            raise RedfishError("PreconditionFailed")

    def _common_headers(self, response: Response) -> dict[str, str]:
        headers = {"OData-Version": "4.0", "Cache-Control": "no-store"}
        if isinstance(response.body, str):
            headers["Content-Type"] = "application/xml;charset=utf-8"
        elif response.body is not None:
            headers["Content-Type"] = "application/json;charset=utf-8"
        return headers


_CHALLENGE = {"WWW-Authenticate": 'Basic realm="Redfish", charset="UTF-8"'}


def _internal_error(detail: str) -> Response:
    error = RedfishError("InternalError")
    body = error.body()
    body["error"]["@Message.ExtendedInfo"][0]["Resolution"] = detail
    return Response(error.status, {}, body)


def _check_version(request: Request) -> None:
    version = request.headers.get("odata-version")
    if version is not None and version.strip() != "4.0":
        raise RedfishError("HeaderInvalid", "OData-Version")


def _basic_credentials(header: str | None) -> tuple[str, str] | None:
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        username, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (username, password) if colon else None


def _etag(body: JsonObject) -> str:
    """A strong ETag: the same as long as the representation is, apart from its clock."""
    fixed = {name: value for name, value in body.items() if name != "DateTime"}
    return f'"{hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]}"'


def _etag_matches(etag: str, header: str) -> bool:
    wanted = [item.strip() for item in header.split(",")]
    return "*" in wanted or etag in wanted


def _json_body(request: Request) -> JsonObject:
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if media_type.lower() != "application/json":
        raise RedfishError("GeneralError", status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    try:
        body = json.loads(request.body or b"{}")
    except (ValueError, UnicodeDecodeError):
        raise RedfishError("MalformedJSON") from None
    if not isinstance(body, dict):
        raise RedfishError("MalformedJSON")
    return body
