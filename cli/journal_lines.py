"""Journal records as people and scripts read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from .output import printable

if TYPE_CHECKING:
    from ..master.journal import Record

VALUE_MAX = 80
"""Characters of one field that a person is shown."""


def as_record(record: Record) -> dict[str, Any]:
    """All of it, as ``--json`` prints it."""
    request = record.request
    fields = msgspec.to_builtins(request.command, builtin_types=(bytes,))
    command = fields.pop("type")
    return {
        "number": record.number,
        "time_ns": request.now_ns,
        "command": command,
        "fields": fields,
        "client_id": f"{request.client_id:016x}" if request.client_id else None,
        "request_id": request.request_id or None,
        "user": [request.user.uid, request.user.gid] if request.user else None,
        "error": record.error or None,
    }


def line(record: Record) -> str:
    """One line, times in UTC; long values are cut."""
    shown = as_record(record)
    moment = datetime.fromtimestamp(shown["time_ns"] / 1e9, UTC)
    words = [str(shown["number"]), f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z", shown["command"]]
    words += [f"{key}={_value(value)}" for key, value in shown["fields"].items()]
    if shown["client_id"]:
        words.append(f"client={shown['client_id']}/{shown['request_id']}")
    if shown["user"]:
        words.append("user={}:{}".format(*shown["user"]))
    if shown["error"]:
        words.append(f"-> {shown['error']}")
    return " ".join(words)


def _value(value: Any) -> str:
    """
    >>> _value(b"a b"), _value([b"x", 1]), _value({"block": 5})
    ("'a b'", "['x',1]", '{block=5}')
    """
    if isinstance(value, bytes | str):
        text = "'" + printable(value) + "'"
    elif isinstance(value, list | tuple):
        text = "[" + ",".join(map(_value, value[:VALUE_MAX])) + "]"
    elif isinstance(value, dict):
        text = "{" + " ".join(f"{key}={_value(inner)}" for key, inner in value.items()) + "}"
    else:
        text = str(value)
    return text if len(text) <= VALUE_MAX else text[: VALUE_MAX - 1] + "…"
