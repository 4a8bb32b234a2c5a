# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Redfish errors: the messages of the Base registry (DSP8011) that this service sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

REGISTRY = "Base.1.18"


@dataclass(frozen=True)
class Message:
    """One message of the registry: usual HTTP status, text with %1 for the first argument, "
    "severity."""

    status: HTTPStatus
    text: str
    severity: str
    resolution: str


MESSAGES: Mapping[str, Message] = {
    "ActionNotSupported": Message(
        HTTPStatus.BAD_REQUEST,
        "The action %1 is not supported by the resource.",
        "Critical",
        "Use one of the actions that the resource names in its Actions property.",
    ),
    "ActionParameterMissing": Message(
        HTTPStatus.BAD_REQUEST,
        "The action %1 requires the parameter %2 to be present in the request body.",
        "Critical",
        "Supply the missing parameter and send the request again.",
    ),
    "ActionParameterUnknown": Message(
        HTTPStatus.BAD_REQUEST,
        "The action %1 was submitted with the invalid parameter %2.",
        "Warning",
        "Remove the parameter and send the request again.",
    ),
    "ActionParameterValueNotInList": Message(
        HTTPStatus.BAD_REQUEST,
        "The value '%1' for the parameter %2 in the action %3 is not in the list of acceptable "
        "values.",
        "Warning",
        "Choose a value from the list that the action advertises.",
    ),
    "ActionParameterValueTypeError": Message(
        HTTPStatus.BAD_REQUEST,
        "The value '%1' for the parameter %2 in the action %3 is of a different type than the "
        "parameter "
        "can accept.",
        "Warning",
        "Send the parameter with the type that its schema gives.",
    ),
    "EmptyJSON": Message(
        HTTPStatus.BAD_REQUEST,
        "The request body contained an empty JSON object when one or more properties are "
        "expected in the "
        "body.",
        "Warning",
        "Add properties to the JSON object.",
    ),
    "GeneralError": Message(
        HTTPStatus.BAD_REQUEST,
        "A general error has occurred.  See Resolution for information on how to resolve the "
        "error, or "
        "@Message.ExtendedInfo if Resolution is not provided.",
        "Critical",
        "None.",
    ),
    "InsufficientPrivilege": Message(
        HTTPStatus.FORBIDDEN,
        "There are insufficient privileges for the account or credentials associated with the "
        "current "
        "session to perform the requested operation.",
        "Critical",
        "Use an account whose role has the privilege.",
    ),
    "InternalError": Message(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "The request failed due to an internal service error.  The service is still operational.",
        "Critical",
        "Send the request again; read the log of the service if it keeps failing.",
    ),
    "MalformedJSON": Message(
        HTTPStatus.BAD_REQUEST,
        "The request body submitted was malformed JSON and could not be parsed by the receiving "
        "service.",
        "Critical",
        "Send a body that is one JSON object.",
    ),
    "NoValidSession": Message(
        HTTPStatus.UNAUTHORIZED,
        "There is no valid session established with the implementation.",
        "Critical",
        "Establish a session before attempting any operations.",
    ),
    "OperationNotAllowed": Message(
        HTTPStatus.METHOD_NOT_ALLOWED,
        "The HTTP method is not allowed on this resource.",
        "Critical",
        "None.",
    ),
    "PreconditionFailed": Message(
        HTTPStatus.PRECONDITION_FAILED,
        "The ETag supplied did not match the current ETag of the resource.",
        "Critical",
        "Read the resource again and send the request with its present ETag.",
    ),
    "PreconditionRequired": Message(
        HTTPStatus.PRECONDITION_REQUIRED,
        "A precondition header or annotation is required to change this resource.",
        "Critical",
        "Send the request with an If-Match header that holds the ETag of the resource.",
    ),
    "HeaderInvalid": Message(
        HTTPStatus.PRECONDITION_FAILED,
        "Header '%1' is invalid.",
        "Critical",
        "Correct the header and send the request again.",
    ),
    "PropertyMissing": Message(
        HTTPStatus.BAD_REQUEST,
        "The property %1 is a required property and must be included in the request.",
        "Warning",
        "Add the property to the request body.",
    ),
    "PropertyNotWritable": Message(
        HTTPStatus.BAD_REQUEST,
        "The property %1 is a read-only property and cannot be assigned a value.",
        "Warning",
        "Remove the property from the request body.",
    ),
    "PropertyUnknown": Message(
        HTTPStatus.BAD_REQUEST,
        "The property %1 is not in the list of valid properties for the resource.",
        "Warning",
        "Remove the property from the request body.",
    ),
    "PropertyValueNotInList": Message(
        HTTPStatus.BAD_REQUEST,
        "The value '%1' for the property %2 is not in the list of acceptable values.",
        "Warning",
        "Choose a value from the list that the resource advertises.",
    ),
    "PropertyValueTypeError": Message(
        HTTPStatus.BAD_REQUEST,
        "The value '%1' for the property %2 is not a type that the property can accept.",
        "Warning",
        "Send the property with the type that its schema gives.",
    ),
    "QueryNotSupported": Message(
        HTTPStatus.NOT_IMPLEMENTED,
        "Querying is not supported by the implementation.",
        "Warning",
        "Remove the query parameters that begin with $.",
    ),
    "ResourceAtUriUnauthorized": Message(
        HTTPStatus.UNAUTHORIZED,
        "While accessing the resource at '%1', the service received an authorization error '%2'.",
        "Critical",
        "Supply the name and password of an account of this service.",
    ),
    "ResourceInStandby": Message(
        HTTPStatus.CONFLICT,
        "The request could not be performed because the resource is in standby.",
        "Critical",
        "Power the resource on and send the request again.",
    ),
    "ResourceMissingAtURI": Message(
        HTTPStatus.NOT_FOUND,
        "The resource at the URI '%1' was not found.",
        "Critical",
        "Follow the links of the service instead of building addresses.",
    ),
    "SessionLimitExceeded": Message(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "The session establishment failed due to the number of simultaneous sessions exceeding "
        "the limit "
        "of the implementation.",
        "Critical",
        "Close a session before opening another.",
    ),
}


class RedfishError(Exception):
    """An error to answer with; `related` is the JSON pointer of the property that it is about."""

    def __init__(
        self,
        message: str,
        *arguments: str,
        related: str | None = None,
        status: HTTPStatus | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, *arguments)
        self.message = message
        self.arguments = arguments
        self.related = related
        self.status = status or MESSAGES[message].status
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The error response of DSP0266, section "Error responses"."""
        message = MESSAGES[self.message]
        text = message.text
        for number, argument in enumerate(self.arguments, start=1):
            text = text.replace(f"%{number}", argument)
        info: dict[str, Any] = {
            "@odata.type": "#Message.v1_1_2.Message",
            "MessageId": f"{REGISTRY}.{self.message}",
            "Message": text,
            "MessageArgs": list(self.arguments),
            "MessageSeverity": message.severity,
            "Resolution": message.resolution,
        }
        if self.related:
            info["RelatedProperties"] = [self.related]
        return {
            "error": {
                "code": f"{REGISTRY}.{self.message}",
                "message": text,
                "@Message.ExtendedInfo": [info],
            }
        }
