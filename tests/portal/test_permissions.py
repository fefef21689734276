"""The tables of docs/api.md say who may do what: every endpoint, page and form is in them, and each cell is tried.

The table of docs/people.md says which changes an operator of each role may make, and is tried too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import LazySettings

from tests.portal import permission_tables, permissions
from tests.portal.fixtures import World
from tests.portal.permissions import FOR_TENANT, OPERATORS, PUBLIC, ROLES, SUPPORT, USERS, Scene
from tests.stripe_stand_in import server
from tests.stripe_stand_in.server import StandIn

DOCUMENTED = permission_tables.documented()
OF_API = {action: cells for action, cells in DOCUMENTED.items() if "/portal/" not in action}
OF_PAGES = {action: cells for action, cells in DOCUMENTED.items() if "/portal/" in action}
#: What operators of each role may change.
OF_OPERATORS = permission_tables.documented("people.md", "What operators may change")


@pytest.fixture(scope="module")
def stripe() -> Iterator[StandIn]:
    """A stand-in of Stripe, which a tenant's payment method is saved at."""
    with server.running() as found:
        yield found


@pytest.fixture
def scene(world: World, tmp_path: Path, stripe: StandIn, settings: LazySettings) -> Scene:
    settings.STRIPE_API = stripe.url
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


def test_every_change_of_an_operator_is_in_the_table_of_their_roles() -> None:
    changes = {action for action, cells in DOCUMENTED.items() if cells["operator"] == "yes" and action[:4] != "GET "}
    assert set(OF_OPERATORS) == {action for action in changes if not action.endswith(FOR_TENANT)}
    assert {tuple(cells) for cells in OF_OPERATORS.values()} == {(*OPERATORS.values(), "admin")}
    assert {cells["admin"] for cells in OF_OPERATORS.values()} == {"yes"}


def test_operators_of_each_role_change_what_the_table_says_and_nothing_else(scene: Scene) -> None:
    for role, column in OPERATORS.items():
        found = {action: scene.outcome(action, role) for action in OF_OPERATORS}
        assert found == {action: cells[column] for action, cells in OF_OPERATORS.items()}, role


def test_an_operator_who_changes_nothing_reads_what_every_operator_reads(scene: Scene) -> None:
    reads = [action for action, cells in DOCUMENTED.items() if cells["operator"] == "yes" and action[:4] == "GET "]
    assert [action for action in reads if scene.outcome(action, "operator with the role viewer") != "yes"] == []


def test_the_support_view_reads_what_an_owner_reads_and_changes_nothing(scene: Scene) -> None:
    expected = {action: cells["owner"] if action[:4] == "GET " else "no" for action, cells in DOCUMENTED.items()}
    expected |= dict.fromkeys((each for each in expected if "/content/" in each), "no")  # what no operator ever reads
    assert {action: scene.outcome(action, SUPPORT) for action in DOCUMENTED} == expected


def test_an_admin_of_a_tenant_may_do_what_its_owner_may(scene: Scene) -> None:
    # Groups of a sign-in provider can make owners, about whom only owners decide.
    changing = [action for action in DOCUMENTED if "/sign-in" not in action]
    only = [action for action in changing if DOCUMENTED[action]["owner"] != DOCUMENTED[action]["viewer"]]
    assert [action for action in only if scene.outcome(action, "admin") != "yes"] == []


def _as_it_is(scene: Scene, table: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    return {action: {role: scene.outcome(action, role) for role in cells} for action, cells in table.items()}
