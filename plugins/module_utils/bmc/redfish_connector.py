# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP side of a Redfish session, in place of sushy's own connector.

sushy takes any connector. Its own (5.14) repeats every request after a lost connection or a read
timeout, a reset included; logs in again on 403 and leaves the old session behind; follows
redirects to any host with the session token. None of that may happen to a BMC, so this one sends a
request once and says what came of it: ``NotYet``, ``Unanswered`` or a Fault.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urljoin, urlsplit

from ..deadline import Deadline
from ..fault import Fault
from .interfaces import NotYet, Unanswered
from .quirks import busy_message
from .target import Target
from .termination import shielded

LIBRARY_ERROR: str | None = None
try:
    import requests
    import urllib3
    from requests.adapters import HTTPAdapter
except ImportError as error:
    LIBRARY_ERROR = str(error)
    HTTPAdapter = object  # type: ignore[assignment,misc]  # requests is missing

_CONNECT_SECONDS = 10.0
_READ_SECONDS = 60.0
_LOGIN_SECONDS = 30.0
_LOGOUT_SECONDS = 5.0
_REDIRECTS = 3
_SETTLING = frozenset({409, 423, 429, 503})
_TASK_RUNNING = frozenset(
    {"New", "Starting", "Running", "Pending", "Suspended", "Service", "Stopping"}
    | {"Interrupted", "Cancelling"}
)
_TASK_FAILED = frozenset({"Exception", "Killed", "Cancelled"})


class PinnedAdapter(HTTPAdapter):
    """Accepts exactly one certificate, whoever signed it."""

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent, with urllib3's own check of the fingerprint before anything is sent."""
        return super().init_poolmanager(*args, assert_fingerprint=self._fingerprint, **kwargs)


class RedfishConnector:
    """Sends requests to one BMC within ``deadline``; ``wait_turn`` spaces those that change it."""

    def __init__(
        self, target: Target, port: int, deadline: Deadline, wait_turn: Callable[[], None]
    ) -> None:
        host = f"[{target.address}]" if ":" in target.address else target.address
        self.base_url = f"https://{host}" if port == 443 else f"https://{host}:{port}"
        self._target = target
        self._deadline = deadline
        self._wait_turn = wait_turn
        self._session_uri: str | None = None
        self._sessions_path = ""
        # sushy reads and clears the token of this session when it logs in.
        self._session = requests.Session()
        # A proxy, a CA bundle or a .netrc of the environment is not meant for a BMC.
        self._session.trust_env = False
        self._session.headers.update(
            {
                "Accept": "application/json",
                # Compressed answers change ETags (sushy).
                "Accept-Encoding": "identity",
                # Keep-alive connections confuse BMCs (sushy).
                "Connection": "close",
                "OData-Version": "4.0",
            }
        )
        self._verify: bool | str = target.ca_path or target.validate_certs
        if target.tls_fingerprint:
            self._verify = False
            self._session.mount("https://", PinnedAdapter(target.tls_fingerprint))
        elif not target.validate_certs:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    # -- what sushy calls ----------------------------------------------------------------------

    def set_auth(self, auth: Any) -> None:
        """sushy hands its authentication object over here; ours needs none."""

    def get(self, path: str = "", **_unused: Any) -> requests.Response:
        """GET; the answer is JSON or a Fault BMC_ANSWER_MALFORMED."""
        response = self._repeat_after_login("GET", path)
        self._raise_for(response, changing=False)
        _require_json(response)
        return response

    def post(self, path: str = "", data: Any = None, **_unused: Any) -> requests.Response:
        """POST once, and follow the task that the answer may name."""
        response = self._repeat_after_login("POST", path, data)
        self._raise_for(response, changing=True)
        return self._follow_task(response)

    def patch(
        self, path: str = "", data: Any = None, etag: str | None = None, **_unused: Any
    ) -> requests.Response:
        """PATCH, with ``If-Match`` when the resource has a tag, in the form this BMC takes."""
        tag = etag or None
        response = self._repeat_after_login("PATCH", path, data, tag)
        # 412: the tag is stale, or the BMC wants another form of it than it gave out
        # (community.general 3268, 6434); 428: it wants one at all (gofish 171).
        if response.status_code in (412, 428):
            fresh = self._repeat_after_login("GET", path).headers.get("ETag") or None
            for candidate in other_tags(fresh, tried=tag):
                response = self._repeat_after_login("PATCH", path, data, candidate)
                if response.status_code not in (412, 428):
                    break
        self._raise_for(response, changing=True)
        return self._follow_task(response)

    def close(self) -> None:
        """Let go of sockets; logging out is :meth:`logout`."""
        self._session.close()

    # -- the session ---------------------------------------------------------------------------

    def login(self, sessions_path: str) -> None:
        """Open a session with exactly one attempt. Raises BMC_AUTH_FAILED.

        A BMC without sessions gets Basic authentication, which its first answer then judges.
        """
        self._forget_token()
        self._sessions_path = sessions_path
        credentials = {"UserName": self._target.username, "Password": self._target.password}
        with shielded():
            response = self._send("POST", sessions_path, credentials, read_seconds=_LOGIN_SECONDS)
            if response.status_code in (404, 405, 501):
                self._session.auth = (self._target.username, self._target.password)
                return
            if response.status_code in (401, 403) and not _busy(response):
                raise self._auth_fault(_words_of(response))
            self._raise_for(response, changing=False)
            token = response.headers.get("X-Auth-Token")
            location = response.headers.get("Location")
            if not location:
                with contextlib.suppress(ValueError, AttributeError):
                    location = response.json().get("@odata.id")
            self._session_uri = location
            if not token:
                raise Fault(
                    "BMC_ANSWER_MALFORMED",
                    wanted="a session token (X-Auth-Token)",
                    found=f"an answer {response.status_code} without one",
                )
            self._session.headers["X-Auth-Token"] = token

    def logout(self) -> None:
        """Delete the session. Never raises: a BMC under load answers even this with 401."""
        uri, self._session_uri = self._session_uri, None
        if uri is not None:
            # The task's deadline may be over; a session left behind locks others out.
            with contextlib.suppress(Exception):
                self._session.request(
                    "DELETE",
                    self._url(uri),
                    verify=self._verify,
                    timeout=_LOGOUT_SECONDS,
                    allow_redirects=False,
                )
        self._forget_token()

    def _forget_token(self) -> None:
        self._session.auth = None
        self._session.headers.pop("X-Auth-Token", None)

    def _repeat_after_login(
        self, method: str, path: str, data: Any = None, tag: str | None = None
    ) -> requests.Response:
        """Send; log in once more and repeat when the session is gone.

        BMCs end sessions after 300 s (Linuxfabrik/lib 246). A request that got 401 had no effect.
        """
        response = self._send(method, path, data, tag)
        if response.status_code != 401:
            return response
        if self._session_uri is None:
            raise self._auth_fault(_words_of(response))
        # Deleting it first keeps "one session per BMC" true should it not be gone after all.
        self.logout()
        self.login(self._sessions_path)
        response = self._send(method, path, data, tag)
        if response.status_code == 401:
            raise self._auth_fault(_words_of(response))
        return response

    def _auth_fault(self, words: list[str]) -> Fault:
        return Fault(
            "BMC_AUTH_FAILED",
            wanted=f"to log in to {self.base_url} as {self._target.username!r}",
            found="the BMC refused user name and password" + _in_words(words),
            details={"address": self._target.address},
        )

    # -- one request ---------------------------------------------------------------------------

    def _url(self, path: str) -> str:
        """The absolute URL of ``path``; the session token goes to no other place."""
        url = urljoin(f"{self.base_url}/", path)
        mine, asked = urlsplit(self.base_url), urlsplit(url)
        if (asked.scheme, asked.hostname, asked.port or 443) != (
            mine.scheme,
            mine.hostname,
            mine.port or 443,
        ):
            raise Fault(
                "BMC_REDIRECTED",
                wanted=f"an address on the BMC {self.base_url}",
                found=f"it points to {url}",
            )
        return url

    def _send(
        self,
        method: str,
        path: str,
        data: Any = None,
        tag: str | None = None,
        read_seconds: float = _READ_SECONDS,
    ) -> requests.Response:
        changing = method != "GET"
        is_login = method == "POST" and path == self._sessions_path
        url = self._url(path)
        for _redirect in range(_REDIRECTS + 1):
            if changing and not is_login:
                self._wait_turn()
            self._deadline.check(f"an answer to {method} {url}")
            left = max(self._deadline.remaining(), 0.1)
            try:
                response = self._session.request(
                    method,
                    url,
                    json=data,
                    headers={"If-Match": tag} if tag else None,
                    verify=self._verify,
                    timeout=(min(_CONNECT_SECONDS, left), min(read_seconds, left)),
                    allow_redirects=False,
                )
            except requests.exceptions.RequestException as error:
                raise self._lost(error, method, url) from error
            except OSError as error:
                # requests says so when the CA file is not there.
                raise Fault(
                    "INVALID_INPUT", wanted="a readable file as ca_path", found=str(error)
                ) from error
            # A BMC may close the connection as it was asked to and not say so in its answer. The
            # next request, a reset perhaps, would then be lost on a connection that is dead.
            self._session.close()
            if changing or response.status_code not in (301, 302, 307, 308):
                break
            url = self._url(response.headers.get("Location", ""))
        if 300 <= response.status_code < 400 and response.status_code != 304:
            raise Fault(
                "BMC_REDIRECTED",
                wanted=f"an answer to {method} {url}",
                found=f"a redirect to {response.headers.get('Location')!r}",
            )
        return response

    def _lost(self, error: Exception, method: str, url: str) -> Exception:
        """What a failed request means: nothing was sent, or the answer got lost."""
        text = _innermost(error)
        if isinstance(error, requests.exceptions.SSLError) and _is_about_certificate(text):
            return Fault(
                "BMC_CERTIFICATE_REJECTED",
                wanted=self._wanted_certificate(),
                found=text,
                details={"address": self._target.address},
            )
        unreachable = Fault(
            "BMC_UNREACHABLE",
            wanted=f"an answer from {self.base_url}",
            found=text,
            details={"address": self._target.address},
        )
        if method == "GET" or _never_sent(error):
            return unreachable
        return Unanswered(f"{method} {url}: {text}")

    def _wanted_certificate(self) -> str:
        if self._target.tls_fingerprint:
            return f"the certificate with SHA-256 {self._target.tls_fingerprint} on {self.base_url}"
        authority = self._target.ca_path or "a CA that this machine trusts"
        return f"a certificate for {self._target.address} signed by {authority}"

    def _raise_for(self, response: requests.Response, *, changing: bool) -> None:
        status = response.status_code
        if status < 400:
            return
        words = _words_of(response)
        request = response.request
        what = f"{request.method} {request.path_url}"
        if status in _SETTLING or _busy(response):
            raise NotYet(f"{what}: {status}{_in_words(words)}", retry_after(response))
        if changing and status in (502, 504):
            # The BMC's own front end lost the answer.
            raise Unanswered(f"{what}: {status}{_in_words(words)}")
        code = {403: "BMC_PRIVILEGE_TOO_LOW", 404: "BMC_RESOURCE_MISSING"}.get(
            status, "BMC_REFUSED"
        )
        raise Fault(
            code,
            wanted=what,
            found=f"{status}{_in_words(words)}",
            details={"status": status, "messages": words},
        )

    def _follow_task(self, response: requests.Response) -> requests.Response:
        """The answer at the end of the task that a 202 names; any other answer as it is.

        A monitor that is gone means a finished task (bmclib): the caller reads the target anyway.
        """
        if response.status_code != 202:
            return response
        monitor = response.headers.get("Location") or _json_of(response).get("@odata.id")
        while monitor:
            self._deadline.check(f"the end of the task {monitor}")
            asked = retry_after(response)
            self._deadline.sleep(min(max(1.0 if asked is None else asked, 0.2), 30.0))
            response = self._repeat_after_login("GET", monitor)
            if response.status_code in _SETTLING or response.status_code == 202:
                state = _json_of(response).get("TaskState")
            elif response.status_code in (404, 410):
                return response
            else:
                self._raise_for(response, changing=True)
                state = _json_of(response).get("TaskState")
                if state not in _TASK_RUNNING and state not in _TASK_FAILED:
                    return response
            if state in _TASK_FAILED:
                raise Fault(
                    "BMC_TASK_FAILED",
                    wanted=f"the task {monitor} to complete",
                    found=f"{state}{_in_words(_words_of(response))}",
                    details={"messages": _words_of(response)},
                )
        return response


def other_tags(fresh: str | None, tried: str | None) -> list[str | None]:
    """The values of If-Match to try next, after ``tried`` was answered with 412 or 428.

    First the tag as it is now, then its other form (weak ``W/"x"`` for strong ``"x"`` and the
    reverse; some BMCs quote twice), last none at all, or ``*`` when none was sent before.
    """
    candidates: list[str | None] = []
    if fresh:
        candidates.append(fresh)
        candidates.append(_other_form(fresh))
    candidates.append(None if tried else "*")
    return [tag for tag in dict.fromkeys(candidates) if tag != tried]


def _other_form(tag: str) -> str:
    bare = tag.removeprefix("W/").strip('"')
    strong = f'"{bare}"'
    return f"W/{strong}" if tag == strong else strong


def retry_after(response: requests.Response) -> float | None:
    """Seconds that the answer asks to wait, from either form of Retry-After; None without."""
    text = response.headers.get("Retry-After", "").strip()
    if not text:
        return None
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None


def _require_json(response: requests.Response) -> None:
    if response.status_code == 304 or not response.content:
        return
    try:
        response.json()
    except ValueError as error:
        raise Fault(
            "BMC_ANSWER_MALFORMED",
            wanted=f"JSON from {response.url}",
            found=f"{response.headers.get('Content-Type', 'no content type')}: "
            f"{response.text[:80]!r}",
        ) from error


def _json_of(response: requests.Response) -> dict[str, Any]:
    """The body as an object; empty for anything else."""
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _words_of(response: requests.Response) -> list[str]:
    """Message ids and texts of an error answer, or of the messages of a task."""
    body = _json_of(response)
    error = body.get("error")
    infos: Any = body.get("Messages")
    words: list[str] = []
    if isinstance(error, dict):
        infos = error.get("@Message.ExtendedInfo") or infos
        words += [str(error[key]) for key in ("code", "message") if error.get(key)]
    if isinstance(infos, dict):
        infos = [infos]
    for info in infos if isinstance(infos, list) else []:
        if isinstance(info, dict):
            words += [str(info[key]) for key in ("MessageId", "Message") if info.get(key)]
    return list(dict.fromkeys(words))


def _busy(response: requests.Response) -> bool:
    return busy_message(response.status_code, _words_of(response)) is not None


def _in_words(words: list[str]) -> str:
    return f" ({'; '.join(words)})" if words else ""


def _innermost(error: BaseException) -> str:
    """The text of the error underneath requests' and urllib3's wrapping."""
    inner: Any = error
    while True:
        reason = getattr(inner, "reason", None)
        nested = [arg for arg in getattr(inner, "args", ()) if isinstance(arg, BaseException)]
        if isinstance(reason, BaseException):
            inner = reason
        elif nested:
            inner = nested[-1]
        else:
            return str(inner)


def _is_about_certificate(text: str) -> bool:
    return any(sign in text.lower() for sign in ("certificate", "fingerprint", "hostname"))


def _never_sent(error: BaseException) -> bool:
    """Whether the connection was not even made."""
    if isinstance(error, requests.exceptions.ConnectTimeout):
        return True
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return isinstance(
        reason,
        urllib3.exceptions.NewConnectionError
        | urllib3.exceptions.ConnectTimeoutError
        | urllib3.exceptions.NameResolutionError,
    )
