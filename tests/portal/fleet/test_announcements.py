"""A retirement is announced to those who may call the model and have a webhook, and only what each may know."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from catalogue import registry
from catalogue.registry import Description
from notifications.models import Event
from notifications.webhooks import endpoints
from portal.fleet import model_changes
from portal.fleet.model_changes import ModelChange, Retirement
from tests.portal.fixtures import MODEL, OPERATOR, World


def test_each_tenant_with_a_webhook_hears_of_it_once_for_each_date(world: World) -> None:
    description = Description(name="acmes", source="/models/a", engine="simulated", context_length_tokens=0)
    registry.register(OPERATOR, world.acme.tenant, description)
    for tenancy in (world.acme, world.globex):
        endpoints.create(OPERATOR, tenancy.tenant, url=f"https://{tenancy.tenant.slug}.example.com/")
    at = timezone.now() + timedelta(days=30)
    for moment in (at, at, None, at):
        retirement = Retirement(retires_at=moment, replacement="acmes" if moment else "")
        model_changes.change(OPERATOR, MODEL, ModelChange(retirement=retirement))
    told = Event.objects.filter(type="hearth.model_retirement.announced.v1").order_by("tenant__slug")
    assert [(each.tenant and each.tenant.slug, each.data["replacement"]) for each in told] == [
        ("acme", "acmes"),
        ("globex", None),
    ]
    private = ModelChange(retirement=Retirement(retires_at=at))
    model_changes.change(OPERATOR, "acmes", private)
    assert [each.tenant and each.tenant.slug for each in told.filter(subject="model/acmes")] == ["acme"]
