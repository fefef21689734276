"""``/api/v1/tenants/{tenant}/account``: to whom a tenant's invoices are addressed, and by which terms it pays."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.accounts import account, mail_addresses
from billing.accounts.account import Account
from billing.models import BillingAccount
from billing.models.accounts import (
    LONGEST,
    LONGEST_ADDRESS_LINE,
    LONGEST_TERMS_DAYS,
    MOST_ADDRESS_LINES,
    MOST_EMAILS,
    WHOLE_BASIS_POINTS,
)
from portal.access.principal import Principal, tenant_for
from portal.api.authentication import OperatorChanges, OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses, reject_unknown_fields
from portal.errors import NotPermitted
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import Tenant


def _text(name: str, help_text: str = "") -> serializers.CharField:
    return serializers.CharField(max_length=LONGEST[name], allow_blank=True, required=False, help_text=help_text)


class DetailsSerializer(serializers.Serializer[Any]):
    """What an operator sets. Empty: unknown."""

    issuer = serializers.ChoiceField(
        choices=BillingAccount.Issuer.choices, required=False, help_text="Who writes the tenant's invoices."
    )
    legal_name = _text("legal_name")
    address_lines = serializers.ListField(
        child=serializers.CharField(max_length=LONGEST_ADDRESS_LINE, allow_blank=True),
        max_length=MOST_ADDRESS_LINES,
        required=False,
        help_text="Street and the like, without postcode and city.",
    )
    city = _text("city")
    postcode = _text("postcode")
    country = _text("country", "ISO 3166-1, two letters.")
    tax_id = _text("tax_id", "Such as a VAT number.")
    tax_rate_basis_points = serializers.IntegerField(
        min_value=0, max_value=WHOLE_BASIS_POINTS, required=False, help_text="Hundredths of a percent: 1900 is 19 %."
    )
    tax_note = _text("tax_note", "Why the rate is what it is; printed on invoices.")
    payment_terms_days = serializers.IntegerField(min_value=0, max_value=LONGEST_TERMS_DAYS, required=False)
    charge_automatically = serializers.BooleanField(
        required=False, help_text="Whether Stripe charges its invoices to the payment method that the tenant saved."
    )
    billing_emails = serializers.ListField(
        child=serializers.CharField(max_length=254),
        max_length=MOST_EMAILS,
        required=False,
        help_text="Who gets invoices and notices about money.",
    )


class ChangeAccountSerializer(DetailsSerializer):
    """What to set. Fields that are absent stay as they are."""

    mode = serializers.ChoiceField(
        choices=account.MODES,
        required=False,
        help_text="prepaid: requests may only spend what the tenant's credit covers, from the next second on.",
    )
    currency = serializers.RegexField(
        r"^[A-Z]{3}$", required=False, help_text="ISO 4217. Fixed once something was charged."
    )


class AccountSerializer(DetailsSerializer):
    """A tenant's billing account."""

    mode = serializers.ChoiceField(choices=account.MODES, read_only=True)

    tenant = serializers.CharField(read_only=True)
    unconfirmed_emails = serializers.ListField(
        child=serializers.CharField(),
        read_only=True,
        help_text="Those of `billing_emails` that got a link to confirm them, and get nothing else before that.",
    )
    currency = serializers.CharField(read_only=True, help_text="Of all amounts of this tenant.")
    currency_is_fixed = serializers.BooleanField(
        read_only=True, help_text="Something was charged, so the currency cannot be changed."
    )


class AccountView(ApiView):
    """One tenant's account."""

    permission_classes = (OperatorChanges,)

    @extend_schema(operation_id="get_account", responses={200: AccountSerializer, **error_responses(403, 404)})
    def get(self, request: Request, tenant: str) -> Response:
        """Return the billing account. For operators, and the tenant's owners and billing members."""
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        require_may_read(principal, found)
        with as_tenant(TenantId(found.id)):
            return Response(_document(found, account.of(found)))

    @extend_schema(
        operation_id="change_account",
        request=ChangeAccountSerializer,
        responses={200: AccountSerializer, **error_responses(400, 403, 404, 409)},
    )
    def patch(self, request: Request, tenant: str) -> Response:
        """Set details of the account. The same again changes nothing. Operators only."""
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        body = ChangeAccountSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        return Response(_document(found, account.change(principal.actor, found, **body.validated_data)))


class ConfirmEmailSerializer(serializers.Serializer[Any]):
    """Which address."""

    address = serializers.CharField(max_length=254, help_text="One of `unconfirmed_emails`.")


class ConfirmEmailView(ApiView):
    """An address that gets invoices."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="confirm_account_email",
        request=ConfirmEmailSerializer,
        responses={200: AccountSerializer, **error_responses(400, 403, 404)},
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Confirm an e-mail address of the account for its owner. Again it changes nothing. Operators only."""
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        body = ConfirmEmailSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        mail_addresses.confirm(principal.actor, found, body.validated_data["address"])
        return Response(_document(found, account.of(found)))


def require_may_read(principal: Principal, tenant: Tenant) -> None:
    """Raise NotPermitted for a principal that may not see to whom this tenant's invoices are addressed."""
    if not principal.handles_bills_of(tenant.id):
        raise NotPermitted("Only operators, and owners and billing members of the tenant, may read this.")


def _document(tenant: Tenant, found: Account) -> Any:
    fields: dict[str, Any] = {
        "currency": found.currency,
        "currency_is_fixed": found.currency_is_fixed,
        "mode": found.mode,
    }
    fields["unconfirmed_emails"] = found.unconfirmed_emails
    return AccountSerializer({"tenant": tenant.slug, **fields, **asdict(found.details)}).data
