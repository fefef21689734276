"""Models that the tiny one cannot stand for, deployed beside it on a running instance; simulated, so quickly there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.journey.instance import Engine, Instance, request, wait_for


@contextmanager
def deployed(instance: Instance, name: str, *arguments: str) -> Iterator[Engine]:
    """Serve a simulated model for as long as the block lasts, as an operator would; yields its engine."""
    before = {engine.replica_id for engine in instance.engines()}
    _deploy(instance, name, "--engine", "simulated", *arguments)
    try:
        yield wait_for(lambda: _ready(instance, name), f"a replica of {name}", seconds=60)
    finally:
        _deploy(instance, name, "--engine", "simulated", "--replicas", "0", *arguments)
        wait_for(lambda: {engine.replica_id for engine in instance.engines()} <= before, f"the end of {name}", 60)


def received(engine: Engine) -> list[dict[str, Any]]:
    """Return what a simulated engine was lately asked for, oldest first."""
    recent: list[dict[str, Any]] = json.loads(engine.get("/_sim/requests"))["recent"]
    return recent


def _deploy(instance: Instance, name: str, *arguments: str) -> None:
    done = instance.hearth("deploy", name, *arguments)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def _ready(instance: Instance, name: str) -> Engine | None:
    """Return the model's engine once the gateway lists the model and its replica is ready."""
    listed = request(f"{instance.api_base}/models/{name}", instance.key("acme"))
    if listed.status != 200:
        return None
    deployments = [each for each in instance.operator("/fleet").json()["deployments"] if each["name"] == name]
    ready = {row["id"] for each in deployments for row in each["replicas"] if row["state"] == "ready"}
    return next((engine for engine in instance.engines() if engine.replica_id in ready), None)
