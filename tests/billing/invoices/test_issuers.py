"""Who makes invoices: which values are refused, and what the audit log says."""

from __future__ import annotations

import pytest

from billing.errors import BadIssuer
from billing.invoices import issuers
from billing.models import Issuer
from tenants.models import AuditEntry
from tests.billing.invoices.conftest import ADA

PARIS = {
    "legal_name": "Hearth SAS",
    "city": "Paris",
    "country": "FR",
    "invoice_prefix": "F-",
    "credit_note_prefix": "A-",
}


@pytest.mark.parametrize(
    ("field", "prefix"),
    [
        ("invoice_prefix", "INV-"),
        ("invoice_prefix", "INV_"),
        ("invoice_prefix", "inv/"),
        ("invoice_prefix", "I-N-V"),
        ("invoice_prefix", "cn"),
        ("credit_note_prefix", "Inv"),
        ("credit_note_prefix", "CN_"),
    ],
)
def test_two_issuers_have_no_numbers_that_payers_write_the_same(issuer: Issuer, field: str, prefix: str) -> None:
    with pytest.raises(BadIssuer, match=f"'{prefix}' is that of berlin") as refused:
        issuers.set_issuer(ADA, "paris", PARIS | {field: prefix})
    assert (refused.value.field, Issuer.objects.count()) == (field, 1)
    issuers.set_issuer(ADA, "berlin", {"invoice_prefix": "inv-"})


@pytest.mark.parametrize("field", ["invoice_prefix", "credit_note_prefix", "timezone"])
@pytest.mark.parametrize("value", ["", " ", "-"])
def test_prefixes_and_the_time_zone_are_never_empty(issuer: Issuer, field: str, value: str) -> None:
    with pytest.raises(BadIssuer) as refused:
        issuers.set_issuer(ADA, "berlin", {field: value})
    assert refused.value.field == field


def test_an_issuers_own_two_prefixes_differ_without_signs(issuer: Issuer) -> None:
    with pytest.raises(BadIssuer, match="must differ from the prefix of invoices"):
        issuers.set_issuer(ADA, "berlin", {"credit_note_prefix": "inv_"})


def test_a_change_of_the_default_is_in_the_audit_log_of_both(issuer: Issuer) -> None:
    issuers.set_issuer(ADA, "paris", PARIS, make_default=True)
    assert issuers.find().name == "paris"
    issuers.set_issuer(ADA, "berlin", {}, make_default=True)
    entries = AuditEntry.objects.filter(action="issuer.set").order_by("id")
    assert list(entries.values_list("object_id", "before__is_default", "after__is_default")) == [
        ("berlin", None, True),
        ("berlin", True, False),
        ("paris", None, True),
        ("paris", True, False),
        ("berlin", False, True),
    ]
