"""The summary of a started instance: printed for people, and ``up.json`` for scripts."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hearth.instance.instance import Instance
from hearth.provisioning.database import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    username: str
    password: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTenant:
    slug: str
    api_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The content of ``up.json``, which exists only while the instance runs. ``pid`` is the supervisor's."""

    api_base: str
    portal_url: str
    admin: Admin
    tenants: tuple[DemoTenant, ...]
    model: str
    engine: Engine
    pid: int


def write(instance: Instance, summary: Summary) -> None:
    """Write ``up.json``, mode 0600, atomically."""
    temporary = instance.up_path.with_name(f".up.json.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(summary), file, indent=2)
    temporary.replace(instance.up_path)


def read(path: Path) -> Summary | None:
    """Return the content of ``up.json``; None while no instance runs."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        admin = Admin(**found.pop("admin"))
        tenants = tuple(DemoTenant(**tenant) for tenant in found.pop("tenants"))
        return Summary(admin=admin, tenants=tenants, **found)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def text(summary: Summary) -> str:
    """Return the summary as text, with a curl command to paste if a demo tenant has a key for it."""
    lines = [
        "",
        f"Hearth is up, engine {summary.engine}.",
        "",
        f"  Portal    {summary.portal_url}",
        f"            user {summary.admin.username}, password {summary.admin.password}",
        f"  API base  {summary.api_base}",
        *(f"  Tenant    {tenant.slug:<8} key {tenant.api_key}" for tenant in summary.tenants),
        "",
        *(_example(summary) if summary.tenants else ("Make a tenant and a key in the portal to call it.",)),
        "",
    ]
    return "\n".join(lines)


def _example(summary: Summary) -> tuple[str, ...]:
    body = json.dumps({"model": summary.model, "messages": [{"role": "user", "content": "Hello!"}]})
    return (
        "Try it:",
        "",
        f"  curl -s {summary.api_base}/chat/completions \\",
        f"    -H 'Authorization: Bearer {summary.tenants[0].api_key}' -H 'Content-Type: application/json' \\",
        f"    -d '{body}'",
    )
