"""Read Hearth's environment variables (``hearth.variables``), typed.

Errors: a missing or bad value raises ``BadSetting`` naming the variable, before anything starts.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hearth import variables
from tenants.errors import BadName
from tenants.networks import Network, parse

ROOT = variables.ROOT

Number = TypeVar("Number", int, float)


class BadSetting(Exception):
    """A variable is missing or cannot be read. Carries ``name``, ``value`` and what is allowed."""

    def __init__(self, name: str, value: str | None, allowed: str) -> None:
        super().__init__(f"{name}={value!r}: expected {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed


_BY_NAME = {setting.name: setting for setting in variables.SETTINGS}


def text(name: str) -> str:
    """Return the variable as text, or its default. Raises BadSetting when it is not one of its choices."""
    setting = _BY_NAME[name]
    value = os.environ.get(name) or setting.default or ""
    if setting.choices and value not in setting.choices:
        raise BadSetting(name, value, " | ".join(setting.choices))
    return value


def integer(name: str, *, minimum: int = 0) -> int:
    """Return the variable as a whole number of at least ``minimum``. Raises BadSetting."""
    return _number(name, int, minimum)


def number(name: str, *, minimum: float = 0.0) -> float:
    """Return the variable as a number of at least ``minimum``. Raises BadSetting."""
    return _number(name, float, minimum)


def flag(name: str) -> bool:
    """Return True for 1, False for 0. Raises BadSetting for anything else."""
    return text(name) == "1"


def networks(name: str) -> tuple[Network, ...]:
    """Return the variable as networks, without empty entries. Raises BadSetting."""
    value = text(name)
    try:
        return parse(each for each in value.split(",") if each.strip())
    except BadName as error:
        raise BadSetting(name, value, f"{error.allowed}, comma separated") from None


def hosts(name: str) -> tuple[str, ...]:
    """Return the variable as host names in lower case, comma separated."""
    return tuple(part.strip().lower() for part in text(name).split(",") if part.strip())


def path(name: str) -> Path:
    """Return the variable as an absolute path, with ``~`` expanded."""
    return Path(text(name)).expanduser().absolute()


def data_dir() -> Path:
    """Return the data folder of this instance; it may not exist yet."""
    return path("HEARTH_DATA_DIR")


def sockets_dir(data: Path) -> Path:
    """Return the folder of this instance's unix sockets, kept short: a socket path ends at 107 bytes."""
    from hashlib import sha256

    digest = sha256(str(data).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"hearth-{digest}"


def agent_sockets_dir(data: Path) -> Path:
    """Return the folder of this instance's agent's own sockets. Not inside the other, which the servers' user has."""
    found = sockets_dir(data)
    return found.with_name(f"{found.name}-agent")


def gateway_sockets_dir(data: Path) -> Path:
    """Return the folder where this instance's gateways listen to each other."""
    found = sockets_dir(data)
    return found.with_name(f"{found.name}-gateway")


def _number(name: str, kind: Callable[[str], Number], minimum: Number) -> Number:
    value = text(name)
    try:
        found = kind(value)
    except ValueError:
        raise BadSetting(name, value, "a number") from None
    if found < minimum:
        raise BadSetting(name, value, f"at least {minimum}")
    return found
