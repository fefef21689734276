"""The tenants of an audit: none is made for a model that they could not call."""

from __future__ import annotations

import pytest

from catalogue import registry as catalogue
from catalogue.registry import Description
from hearth.isolation_audit import accounts
from hearth.isolation_audit.errors import AuditFailed
from tests.tenants import customers
from tests.tenants.customers import OPERATOR

pytestmark = pytest.mark.django_db


def register(name: str, *, public: bool) -> None:
    """Register a model of some tenant."""
    described = Description(
        name=name, source="/models/demo", engine="simulated", context_length_tokens=2048, public=public
    )
    catalogue.register(OPERATOR, customers.create(f"owner-of-{name}").tenant, described)


def test_without_a_model_for_every_tenant_there_is_no_audit() -> None:
    register("private", public=False)
    with pytest.raises(AuditFailed) as failed:
        accounts.require_model("")
    assert "every tenant" in failed.value.problem


@pytest.mark.parametrize("name", ["nosuch", "private"])
def test_a_model_that_new_tenants_may_not_call_is_refused_with_those_they_may(name: str) -> None:
    register("private", public=False)
    register("shared", public=True)
    accounts.require_model("shared")
    accounts.require_model("")
    with pytest.raises(AuditFailed) as failed:
        accounts.require_model(name)
    assert name in failed.value.problem
    assert "Use one of shared" in failed.value.remedy
