"""The tables of docs/api.md say who may do what: every endpoint, page and form is in them, and each cell is tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.portal import permissions
from tests.portal.fixtures import World
from tests.portal.permissions import FOR_TENANT, PUBLIC, ROLES, USERS, Scene

DOCUMENTED = permissions.documented()
OF_API = {action: cells for action, cells in DOCUMENTED.items() if "/portal/" not in action}
OF_PAGES = {action: cells for action, cells in DOCUMENTED.items() if "/portal/" in action}


@pytest.fixture
def scene(world: World, tmp_path: Path) -> Scene:
    return permissions.build(world, tmp_path / "adapter")


def test_every_endpoint_page_and_form_is_in_the_tables(scene: Scene) -> None:
    served = {*permissions.endpoints(), *permissions.pages_and_forms(scene)} - PUBLIC
    listed = {action for action in DOCUMENTED if not action.endswith(FOR_TENANT)}
    assert listed - served == set(), "in docs/api.md, but not served"
    assert served - listed == set(), "served, but in no row of docs/api.md, Who may do what"
    assert {action.removesuffix(FOR_TENANT) for action in DOCUMENTED} == listed


def test_the_tables_have_a_column_for_every_role() -> None:
    assert {tuple(cells) for cells in OF_API.values()} == {ROLES}
    assert {tuple(cells) for cells in OF_PAGES.values()} == {USERS}


def test_every_cell_of_the_api_is_true(scene: Scene) -> None:
    assert _as_it_is(scene, OF_API) == OF_API


def test_every_cell_of_the_pages_is_true(scene: Scene) -> None:
    assert _as_it_is(scene, OF_PAGES) == OF_PAGES


def _as_it_is(scene: Scene, table: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    return {action: {role: scene.outcome(action, role) for role in cells} for action, cells in table.items()}
