"""The source root ``platform/`` and the rooms: what breaks silently when it breaks."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

import billing
import caching
import catalogue
import gateway
import hearth
import portal
import routing
import tenants
import workers

ROOT = Path(__file__).resolve().parents[1]
ROOMS = (hearth, gateway, catalogue, billing, portal, tenants, caching, routing, workers)


def test_platform_folder_is_not_a_package() -> None:
    """An ``__init__.py`` there would replace the standard library's ``platform``."""
    assert not (ROOT / "platform" / "__init__.py").exists()


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__)
def test_rooms_come_from_this_checkout(room: ModuleType) -> None:
    """A distribution that ships a module of the same name would win silently."""
    assert Path(room.__file__ or "").is_relative_to(ROOT)
