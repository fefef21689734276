"""A fleet, as the workers' tests have it."""

from __future__ import annotations

from tests.workers.conftest import fleet, platform

__all__ = ["fleet", "platform"]
