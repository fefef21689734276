"""``/api/v1/tenants/{tenant}/payment-method``: what Stripe charges a tenant's invoices to."""

from __future__ import annotations

from typing import Any

from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from billing.accounts import account
from billing.stripe import customers
from portal.access.principal import Principal, tenant_for
from portal.api.authentication import principal_of
from portal.api.billing.account import require_may_read
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses
from portal.errors import NotPermitted
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import Tenant


class PaymentMethodSerializer(serializers.Serializer[Any]):
    """A tenant's payment method at Stripe."""

    text = serializers.CharField(
        read_only=True, allow_null=True, help_text="What Stripe says of it; null: none is saved."
    )
    saved_at = serializers.DateTimeField(read_only=True, allow_null=True)
    charge_automatically = serializers.BooleanField(
        read_only=True, help_text="Whether the account says that invoices are charged to it. Operators set it."
    )


class SavingSerializer(serializers.Serializer[Any]):
    """Where a payment method is saved."""

    url = serializers.URLField(read_only=True, help_text="Stripe's page, for a person. It ends after a day.")


class PaymentMethodView(ApiView):
    """What Stripe charges."""

    without_key = "it changes nothing before the person has been on Stripe's page"

    @extend_schema(
        operation_id="get_payment_method", responses={200: PaymentMethodSerializer, **error_responses(403, 404)}
    )
    def get(self, request: Request, tenant: str) -> Response:
        """Return the payment method. For operators, and the tenant's owners, admins and billing members."""
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        require_may_read(principal, found)
        connection = customers.account_to_save_in()
        with as_tenant(TenantId(found.id)):
            row, details = customers.with_method(found, connection), account.of(found).details
        shown = {
            "text": row.payment_method if row else None,
            "saved_at": row.payment_method_at if row else None,
            "charge_automatically": details.charge_automatically,
        }
        return Response(PaymentMethodSerializer(shown).data)

    @extend_schema(
        operation_id="save_payment_method",
        request=None,
        responses={201: SavingSerializer, **error_responses(403, 404, 409, 503)},
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Return the address of Stripe's page on which a payment method is saved. Owners, admins and billing members.

        Once it is saved there, it replaces the earlier one.
        """
        principal = principal_of(request)
        found = _changeable(principal, tenant)
        back = request.build_absolute_uri(reverse("portal:billing", kwargs={"slug": found.slug}))
        url = customers.begin_saving(principal.actor, found, back)
        return Response(SavingSerializer({"url": url}).data, status=status.HTTP_201_CREATED)

    @extend_schema(
        operation_id="remove_payment_method", request=None, responses={204: None, **error_responses(403, 404, 409, 503)}
    )
    def delete(self, request: Request, tenant: str) -> Response:
        """Remove the payment method, at Stripe too. The same again changes nothing."""
        principal = principal_of(request)
        customers.remove(principal.actor, _changeable(principal, tenant))
        return Response(status=status.HTTP_204_NO_CONTENT)


def _changeable(principal: Principal, tenant: str) -> Tenant:
    """Return the tenant. Raises NotFound, and NotPermitted for a caller whose payment method it is not."""
    found = tenant_for(principal, tenant)
    if principal.is_operator or not principal.handles_bills_of(found.id):
        raise NotPermitted("Only owners, admins and billing members of the tenant save its payment method.")
    return found
