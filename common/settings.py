"""Settings of one role from flags, environment and a TOML file, in that order of precedence.

A role's settings are a frozen pydantic model that derives from ``Settings``. The file has one table per role::

    [master]
    listen = "10.0.0.1:7070"

and the environment one variable per field: ``HEARTH_MASTER_LISTEN``. A key that no field has is an error that names
the nearest known one, wherever it stands.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import pydantic

from .errors import SettingsError

ENVIRONMENT_PREFIX = "HEARTH_"
ROLES = ("master", "worker", "client", "mount", "connector", "cli")
CONFIG_FILE_VARIABLE = "HEARTH_CONFIG"
DEFAULT_CONFIG_FILE = Path("/etc/hearthfs/hearth.toml")


class Settings(pydantic.BaseModel):
    """Base of all roles' settings. ``role`` names the table and the part of the variable name."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    role: ClassVar[str]

    @classmethod
    def load(
        cls,
        flags: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        file: Path | None = None,
    ) -> Self:
        """Merges the sources; flags that are None count as not given.

        Raises:
            SettingsError: unknown key, bad value, unreadable file. The text says where the key stands.
        """
        environment = os.environ if environment is None else environment
        merged: dict[str, Any] = {}
        for where, values in (
            cls._from_file(environment, file),
            cls._from_environment(environment),
            ("flag", {key: value for key, value in (flags or {}).items() if value is not None}),
        ):
            for key, value in values.items():
                if key not in cls.model_fields:
                    raise SettingsError(_unknown(where, key, cls.model_fields))
                merged[key] = value
        try:
            return cls.model_validate(merged)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise SettingsError(f"setting {cls.role}.{key}: {first['msg']} (value {first['input']!r})") from None

    @classmethod
    def _from_file(cls, environment: Mapping[str, str], file: Path | None) -> tuple[str, dict[str, Any]]:
        if file is None:
            named = environment.get(CONFIG_FILE_VARIABLE)
            file = Path(named) if named else DEFAULT_CONFIG_FILE
            if not named and not file.exists():
                return "", {}
        try:
            with file.open("rb") as stream:
                tables = tomllib.load(stream)
        except OSError as error:
            raise SettingsError(f"settings file {file}: {error.strerror}") from None
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"settings file {file}: {error}") from None
        for name in tables:
            if name not in ROLES:
                raise SettingsError(_unknown(f"{file}: table", name, dict.fromkeys(ROLES)))
        table = tables.get(cls.role, {})
        if not isinstance(table, dict):
            raise SettingsError(f"{file}: {cls.role} must be a table, [{cls.role}]")
        return f"{file}: [{cls.role}]", table

    @classmethod
    def _from_environment(cls, environment: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
        prefix = f"{ENVIRONMENT_PREFIX}{cls.role.upper()}_"
        found: dict[str, Any] = {}
        for name, value in environment.items():
            if name.startswith(prefix):
                key = name.removeprefix(prefix).lower()
                field = cls.model_fields.get(key)
                is_list = field is not None and getattr(field.annotation, "__origin__", None) in (tuple, list)
                found[key] = value.split(",") if is_list else value
        return f"environment {prefix}*", found


def _unknown(where: str, key: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
    return f"{where}: unknown key {key!r}; {hint}"


def parse_bytes(text: str | int) -> int:
    """``"64MiB"``, ``"10G"`` (1024-based), ``"1048576"`` to a number of bytes.

    >>> parse_bytes("1.5GiB")
    1610612736

    Raises:
        ValueError: not such a number.
    """
    if isinstance(text, int):
        return text
    units = {"": 0, "B": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
    number = text.strip().rstrip("bB").removesuffix("i").strip()
    unit = number[-1:].upper() if number and not number[-1].isdigit() else ""
    if unit not in units:
        raise ValueError(f"{text!r} is not a size; write it as 1048576, 64MiB or 10GiB")
    try:
        value = float(number[: len(number) - len(unit)])
    except ValueError:
        raise ValueError(f"{text!r} is not a size; write it as 1048576, 64MiB or 10GiB") from None
    return int(value * 1024 ** units[unit])
