"""The gateways' reports add up to the demand of each deployment while the gateways repeat them."""

from __future__ import annotations

import datetime as dt
from uuid import uuid4

import pytest
from django.db.models import F

from tests.workers.conftest import Fleet
from workers.models import GatewayLoad
from workers.serving import gateway_load
from workers.serving.gateway_load import DeploymentLoad

pytestmark = pytest.mark.django_db

BUSY = DeploymentLoad(in_flight_requests=2, in_flight_tokens=300, queued_requests=1, queued_tokens=40)


def make_older(age: dt.timedelta) -> None:
    """Make all reports older by this time."""
    GatewayLoad.objects.update(reported_at=F("reported_at") - age)


def test_the_loads_of_all_processes_add_up_by_deployment(fleet: Fleet) -> None:
    one, other = fleet.deploy(1), fleet.deploy(1, name="other")
    gateway_load.report("a", {one.id: BUSY, other.id: DeploymentLoad(in_flight_tokens=7, in_flight_requests=1)})
    gateway_load.report("b", {one.id: BUSY})
    assert gateway_load.demand() == {
        one.id: DeploymentLoad(in_flight_requests=4, in_flight_tokens=600, queued_requests=2, queued_tokens=80),
        other.id: DeploymentLoad(in_flight_requests=1, in_flight_tokens=7),
    }


def test_a_later_report_replaces_the_earlier_one(fleet: Fleet) -> None:
    deployment = fleet.deploy(1)
    gateway_load.report("a", {deployment.id: BUSY})
    gateway_load.report("a", {deployment.id: DeploymentLoad()})
    assert gateway_load.demand() == {deployment.id: DeploymentLoad()}
    assert GatewayLoad.objects.count() == 1


def test_a_request_between_two_reports_is_remembered_and_no_report_forgets_it(fleet: Fleet) -> None:
    quiet, busy, short = (fleet.deploy(1, name=name) for name in ("quiet", "busy", "short"))
    gateway_load.report("a", {quiet.id: DeploymentLoad(), busy.id: BUSY, short.id: DeploymentLoad()}, busy={short.id})
    before = gateway_load.busy_at()
    assert set(before) == {busy.id, short.id}
    gateway_load.report("a", {quiet.id: DeploymentLoad(), busy.id: DeploymentLoad(), short.id: DeploymentLoad()})
    gateway_load.report("b", {short.id: BUSY})
    after = gateway_load.busy_at()
    assert after[busy.id] == before[busy.id]
    assert after[short.id] > before[short.id]


def test_processes_that_report_are_known_by_name_even_when_they_have_nothing_to_do(fleet: Fleet) -> None:
    one, other = fleet.deploy(1), fleet.deploy(1, name="other")
    gateway_load.report("b", {one.id: DeploymentLoad(), other.id: DeploymentLoad()})
    gateway_load.report("a", {one.id: BUSY, other.id: DeploymentLoad()})
    assert gateway_load.gateways() == ("a", "b")
    make_older(gateway_load.LASTS)
    gateway_load.report("b", {one.id: DeploymentLoad()})
    assert gateway_load.gateways() == ("b",)


def test_a_silent_process_counts_for_nothing_until_it_speaks_again(fleet: Fleet) -> None:
    deployment = fleet.deploy(1)
    gateway_load.report("a", {deployment.id: BUSY})
    make_older(gateway_load.LASTS)
    assert gateway_load.demand() == {}
    gateway_load.report("a", {deployment.id: BUSY})
    assert gateway_load.demand() == {deployment.id: BUSY}


def test_rows_of_processes_that_are_gone_are_removed(fleet: Fleet) -> None:
    deployment = fleet.deploy(1)
    gateway_load.report("gone", {deployment.id: BUSY})
    make_older(gateway_load.FORGOTTEN_AFTER)
    gateway_load.report("here", {deployment.id: BUSY})
    assert gateway_load.forget_silent() == 1
    assert [row.process for row in GatewayLoad.objects.all()] == ["here"]


def test_a_deployment_that_is_not_there_is_passed_over(fleet: Fleet) -> None:
    deployment = fleet.deploy(1)
    gateway_load.report("a", {uuid4(): BUSY, deployment.id: BUSY})
    assert gateway_load.demand() == {deployment.id: BUSY}
    gateway_load.report("a", {})


def test_a_replica_is_routed_by_all_once_every_live_process_names_it(fleet: Fleet) -> None:
    one, other = fleet.deploy(1), fleet.deploy(1, name="other")
    first, second, third = uuid4(), uuid4(), uuid4()
    wanted = {first, second, third}
    assert gateway_load.routed_by_all(wanted) == wanted
    loads = {one.id: DeploymentLoad(), other.id: DeploymentLoad()}
    gateway_load.report("a", loads, replicas={one.id: {first, second}, other.id: {third}})
    assert gateway_load.routed_by_all(wanted) == wanted
    gateway_load.report("b", {other.id: DeploymentLoad()}, replicas={other.id: {third}})
    assert gateway_load.routed_by_all(wanted) == {third}
    gateway_load.report("b", loads, replicas={one.id: {second, uuid4()}})
    assert gateway_load.routed_by_all(wanted) == {second}
    assert gateway_load.routed_by_all(()) == set()


def test_a_process_that_is_gone_holds_nothing_up_and_one_that_names_nothing_does(fleet: Fleet) -> None:
    deployment, replica = fleet.deploy(1), uuid4()
    gateway_load.report("gone", {deployment.id: DeploymentLoad()})
    make_older(gateway_load.LASTS)
    gateway_load.report("here", {deployment.id: DeploymentLoad()}, replicas={deployment.id: {replica}})
    assert gateway_load.routed_by_all({replica}) == {replica}
    gateway_load.report("of the version before", {deployment.id: DeploymentLoad()})
    assert gateway_load.routed_by_all({replica}) == set()
