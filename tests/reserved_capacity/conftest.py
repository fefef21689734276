"""Two tenants: ``globex`` is the stranger."""

from __future__ import annotations

from tests.tenants.conftest import acme, globex

__all__ = ["acme", "globex"]
