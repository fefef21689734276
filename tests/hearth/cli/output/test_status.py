"""What `hearth status` prints about the usage log, also while the database is unavailable."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hearth.cli.output.status import Status, text

GIB = 1 << 30
UP = Status(
    state="up",
    pid=1,
    data_dir="/data",
    pool=None,
    engine="simulated",
    api_base="http://127.0.0.1:8080/v1",
    portal_url="http://127.0.0.1:8081/portal/",
    admin_username="admin",
    tenants=(),
    roles=(),
    servers=(),
    replicas=(),
    placeholders=(),
    shortages=("deployment chat: no slot is free for 2 of 5 replicas",),
    alerts=("disk: Only 1.0 GiB of 64.0 GiB are free on n1.",),
    wal_backlog_bytes=1234,
    wal_lag_seconds=2.0,
    wal_disk_bytes=GIB,
    wal_max_bytes=8 * GIB,
)


def lines(found: Status) -> list[str]:
    """Return the lines about the usage log."""
    return [line.strip() for line in text(found).splitlines() if "usage" in line or "SERVED" in line]


def test_a_deployment_without_slots_is_named() -> None:
    assert "  deployment chat: no slot is free for 2 of 5 replicas" in text(UP).splitlines()


def test_an_open_alert_is_named() -> None:
    assert "  ALERT disk: Only 1.0 GiB of 64.0 GiB are free on n1." in text(UP).splitlines()


def test_how_far_the_drain_is_behind_and_what_the_log_takes_is_told() -> None:
    assert lines(UP) == [
        "usage not yet in the database: 1234 bytes, 2 s behind",
        "the usage log takes 1.0 GiB of at most 8.0 GiB",
    ]


def test_without_a_database_what_the_log_takes_is_told_all_the_same() -> None:
    unavailable = replace(UP, wal_backlog_bytes=None, wal_lag_seconds=None)
    assert lines(unavailable) == [
        "usage not yet in the database: unknown, the database does not respond",
        "the usage log takes 1.0 GiB of at most 8.0 GiB",
    ]


@pytest.mark.parametrize(
    ("disk_bytes", "warning"),
    [
        (2 * GIB, "more than a quarter of the usage log's limit is used: check the drain and the database"),
        (8 * GIB, "NOTHING IS SERVED until the drain has stored the usage log in the database"),
    ],
)
def test_a_log_that_grows_is_told_of_before_and_when_it_stops_everything(disk_bytes: int, warning: str) -> None:
    assert lines(replace(UP, wal_disk_bytes=disk_bytes))[-1] == warning
