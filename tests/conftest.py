"""What every test shares. The servers come from ``tests/servers.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import HealthCheck, settings
from whitenoise.middleware import WhiteNoiseMiddleware  # type: ignore[import-untyped]
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests import emptied_database
from tests.servers import database_is_embedded, superuser_url

#: A busy machine is no failure: the first text that is drawn there took over a second, which Hypothesis refuses.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


TESTS = Path(__file__).parent
#: Folders whose tests share an instance or an engine that starts slowly: one process runs each of them, and first.
SHARED = ("journey", "engines")
#: Files that share an instance, in this order: one process runs both.
ONE_INSTANCE = ("tests/hearth/health/test_roles.py", "tests/hearth/supervisor/test_up.py")
#: Then those whose files take longest, so that no process is left alone with one at the end.
LONG_FILES = ("chaos", "docker", "hearth", "workers", "portal")


class ByFolderOrFile(LoadScopeScheduling):  # type: ignore[misc]  # it carries no types
    """Deals tests out to the processes of pytest-xdist: SHARED folders and ONE_INSTANCE whole, other tests by file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = file.split("/")[1]
        if file in ONE_INSTANCE:
            return ONE_INSTANCE[0]
        return folder if folder in SHARED else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFolderOrFile:
    """Return the scheduler of ``make test``."""
    return ByFolderOrFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of SHARED and LONG_FILES first, and write each test's markers into the JUnit report.

    ``.ci/require_marked_tests.py`` reads the markers.
    """
    items.sort(key=_place)
    for item in items:
        item.user_properties.extend(("marker", name) for name in sorted({mark.name for mark in item.iter_markers()}))


@pytest.fixture(scope="session", autouse=True)
def cheap_passwords() -> Iterator[None]:
    """Hash passwords with few rounds: a real hash takes half a second. Other processes can check these hashes."""
    with override_settings(PASSWORD_HASHERS=["tests.cheap_passwords.FewRounds"]):
        yield


@pytest.fixture(scope="session", autouse=True)
def tasks_go_to_redis() -> None:
    """Send tasks to the session's Redis, whatever ran before: Celery's own default server is tried for 20 s."""
    from hearth.celery import app

    app.set_current()


@pytest.fixture(scope="session", autouse=True)
def static_files_are_listed_once() -> Iterator[None]:
    """Let every client of a test share WhiteNoise's list of the static files, which takes as long as some tests."""
    found: dict[str, Any] = {}
    look = WhiteNoiseMiddleware.add_files_from_finders

    def once(middleware: WhiteNoiseMiddleware) -> None:
        if not found:
            look(middleware)
            found.update(middleware.files)
        middleware.files.update(found)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WhiteNoiseMiddleware, "add_files_from_finders", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def what_a_flush_leaves_out() -> Iterator[None]:
    """After a test that committed, empty the database quickly where the superuser is known.

    Elsewhere by Django's flush. That empties the row that migrations make, too, and leaves usage, which Django does not
    manage: restore the one and empty the other.
    """
    from django.apps import apps
    from django.db import connections
    from django.db.models.signals import post_migrate
    from django.test import TransactionTestCase

    from tenants.models import PolicyEpoch

    def restore(using: str, **given: Any) -> None:
        if "plan" in given:  # a migration
            return
        PolicyEpoch.objects.using(using).get_or_create(id=1)
        with connections[using].cursor() as cursor:
            cursor.execute("TRUNCATE billing_usagerecord")

    def empty(case: TransactionTestCase) -> None:
        emptied_database.empty(superuser_url(connections["default"].settings_dict["NAME"]))

    with pytest.MonkeyPatch.context() as patched:
        if database_is_embedded():
            patched.setattr(TransactionTestCase, "_fixture_teardown", empty)
        post_migrate.connect(restore, sender=apps.get_app_config("tenants"))
        yield
        post_migrate.disconnect(restore, sender=apps.get_app_config("tenants"))


def _place(item: pytest.Item) -> int:
    folder = item.path.relative_to(TESTS).parts[0]
    first = SHARED + LONG_FILES
    return first.index(folder) if folder in first else len(first)
