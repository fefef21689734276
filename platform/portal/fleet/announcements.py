"""Events that tell tenants of a change of the models that they may call."""

from __future__ import annotations

from datetime import UTC

from catalogue.models import Model
from notifications import outbox
from notifications.event_types import MODEL_RETIREMENT_ANNOUNCED
from notifications.models import WebhookEndpoint
from tenants.models import Tenant


def retirement(model: Model) -> None:
    """Tell each tenant with a webhook that may call the model when it retires. Call it in a transaction."""
    assert model.retires_at is not None
    successor = None
    if model.replacement:
        rows = Model.objects.filter(archived_at=None)
        successor = rows.filter(name=model.replacement).first() or rows.filter(aliases__name=model.replacement).first()
    moment = model.retires_at.astimezone(UTC).isoformat()
    listening = WebhookEndpoint.objects.exclude(tenant=None).values("tenant_id")
    tenants = Tenant.objects.filter(id__in=listening).exclude(state=Tenant.State.ARCHIVED).order_by("id")
    for tenant in tenants:
        if not _sees(tenant, model):
            continue
        named = successor is not None and _sees(tenant, successor)
        outbox.emit(
            MODEL_RETIREMENT_ANNOUNCED,
            subject=("model", model.name),
            data={
                "model": model.name,
                "retires_at": moment,
                "replacement": model.replacement if named else None,
            },
            dedupe_key=f"{model.id}:{moment}",
            tenant=tenant,
        )


def _sees(tenant: Tenant, model: Model) -> bool:
    return model.visibility == Model.Visibility.PUBLIC or model.owner_id == tenant.id or tenant.id in model.shared_with
