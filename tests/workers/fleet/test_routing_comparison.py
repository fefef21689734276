"""A comparison of routing policies begins once, within bounds, ends by itself, and is audited."""

from __future__ import annotations

import pytest
from django.db.models.functions import Now

from catalogue import routing_policy
from catalogue.routing_policy import RoutingPolicy
from tenants.audit import Actor
from tenants.models import AuditEntry
from tests.workers.conftest import Fleet
from workers.errors import BadCount, BadValue, NotFound, Refused
from workers.fleet import operations, routing_comparison
from workers.fleet.error_text import words
from workers.models import Deployment

pytestmark = pytest.mark.django_db

ADA = Actor(kind="user", name="ada")
SESSION, IN_TURNS = RoutingPolicy(name="session"), RoutingPolicy(name="round-robin")


def test_one_runs_at_a_time_and_the_deployments_own_policy_stays(fleet: Fleet) -> None:
    fleet.deploy(0)
    operations.route(ADA, "chat", SESSION)
    begun = routing_comparison.start(ADA, "chat", None, IN_TURNS, share=0.5, minutes=5)
    assert (begun.policy, begun.until - begun.began) == (SESSION, 300)
    with pytest.raises(Refused, match="runs for another"):
        routing_comparison.start(ADA, "chat", None, IN_TURNS, share=0.5, minutes=5)
    ended = routing_comparison.stop(ADA, "chat")
    assert begun.began <= ended.until < begun.until
    assert routing_comparison.stop(ADA, "chat") == ended
    assert routing_comparison.last("chat")[1] == ended
    stored = routing_policy.read(Deployment.objects.get().routing)
    assert (stored.policy, stored.comparison) == (SESSION, ended)
    operations.route(ADA, "chat", routing_policy.DEFAULT)
    assert routing_comparison.last("chat")[1] == ended
    assert routing_comparison.start(ADA, "chat", SESSION, IN_TURNS, share=0.1, minutes=1).name != begun.name
    actions = AuditEntry.objects.filter(action__contains="compar").order_by("id").values_list("action", flat=True)
    assert list(actions) == [
        "deployment.routing_compared",
        "deployment.comparison_ended",
        "deployment.routing_compared",
    ]


@pytest.mark.parametrize("policy", [None, SESSION])
def test_a_policy_is_not_compared_with_itself(fleet: Fleet, policy: RoutingPolicy | None) -> None:
    fleet.deploy(0)
    operations.route(ADA, "chat", SESSION)
    with pytest.raises(Refused) as refused:
        routing_comparison.start(ADA, "chat", policy, SESSION, share=0.5, minutes=5)
    assert words(refused.value) == (
        "deployment chat: both policies of the comparison are session; name another one with --against"
    )


def test_a_model_with_another_deployment_is_not_compared_because_gateways_split_its_requests(fleet: Fleet) -> None:
    first = fleet.deploy(0)
    Deployment.objects.create(name="other", revision=first.revision)
    with pytest.raises(Refused, match="served by other too"):
        routing_comparison.start(ADA, "chat", None, IN_TURNS, share=0.5, minutes=5)
    Deployment.objects.filter(name="other").update(archived_at=Now())
    assert routing_comparison.start(ADA, "chat", None, IN_TURNS, share=0.5, minutes=5).against == IN_TURNS


@pytest.mark.parametrize(
    ("share", "minutes"), [(0, 5), (1, 5), (float("nan"), 5), (0.5, 0), (0.5, 10_081), (0.5, float("nan"))]
)
def test_a_share_or_time_out_of_range_is_refused(fleet: Fleet, share: float, minutes: float) -> None:
    fleet.deploy(0)
    with pytest.raises((BadCount, BadValue)) as refused:
        routing_comparison.start(ADA, "chat", None, IN_TURNS, share=share, minutes=minutes)
    assert ("is not a valid share of the conversations: use" in words(refused.value)) == (minutes == 5)
    with pytest.raises(NotFound):
        routing_comparison.last("chat")
