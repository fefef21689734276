"""Forms of a model that need what was there before: a checked deployment, and a change that can be undone."""

from __future__ import annotations

from uuid import UUID

from portal.forms.fleet.deploy import DeployForm
from tenants.models import AuditEntry


def checked_deployment() -> dict[str, str]:
    """Return the form that deploys a model, as the page has it once it was checked."""
    form = {
        "name": "further", "engine": "simulated", "task": "text", "pool": "spare", "replicas": "0",
        "slots_per_replica": "1", "context_tokens": "1024", "kv_dtype": "auto", "quantization": "auto",
        "visibility": "public",
    }  # fmt: skip
    read = DeployForm(form)
    assert read.is_valid(), read.errors
    return form | {"checked": read.fingerprint()}


def undoable_entry() -> UUID:
    """Return the id of the change of a model that can be undone."""
    found = AuditEntry.objects.filter(action="model.aliases_set").values_list("id", flat=True).first()
    assert found is not None
    return found
