"""``/api/v1/dunning``: what is done about invoices that are not paid in time."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from billing.dunning import cases, holding, holds, policy, run
from billing.dunning.cases import Case
from billing.dunning.policy import Policy
from billing.dunning.run import Ran
from billing.invoices import registry
from billing.models import DunningHold, DunningStep
from billing.models.dunning import LONGEST_DAYS, LONGEST_REASON
from portal.access.principal import Principal, tenant_for
from portal.api import pagination
from portal.api.authentication import OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from portal.formats import query_params
from tenants.database.rls import as_tenant
from tenants.errors import NotFound
from tenants.ids import TenantId
from tenants.models import Tenant

_OF_WHOM = [
    OpenApiParameter("issuer", str, description="Name of an issuer. Default: the default issuer."),
    OpenApiParameter("tenant", str, description="Slug or id of a tenant: its own policy instead."),
]


class DunningStepSerializer(serializers.Serializer[DunningStep]):
    """A step that was taken."""

    kind = serializers.ChoiceField(choices=DunningStep.Kind.choices)
    taken_on = serializers.DateField(help_text="In the tenant's billing time zone.")


class DunningHoldSerializer(serializers.Serializer[DunningHold]):
    """What holds dunning."""

    id = serializers.UUIDField()
    tenant_id = serializers.UUIDField()
    invoice = serializers.SerializerMethodField(help_text="Number of the invoice; null: all of the tenant's.")
    reason = serializers.CharField()
    until = serializers.DateField(allow_null=True, help_text="Its last day; null: until somebody ends it.")
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)

    def get_invoice(self, hold: DunningHold) -> str | None:
        """Return the number."""
        return None if hold.invoice is None else hold.invoice.number


class DunningCaseSerializer(serializers.Serializer[Case]):
    """An invoice that is late, or of which a payment failed."""

    id = serializers.UUIDField()
    invoice = serializers.CharField(source="invoice.number")
    invoice_id = serializers.UUIDField(source="invoice.id")
    tenant = serializers.CharField(source="tenant.slug")
    currency = serializers.CharField(source="invoice.currency")
    open_cents = serializers.IntegerField(help_text="What is still to be paid.")
    due_on = serializers.DateField(source="invoice.due_on")
    days_late = serializers.IntegerField()
    steps = DunningStepSerializer(many=True)
    next = serializers.CharField(source="next_kind", help_text="The next step as the last run found it; empty: none.")
    next_on = serializers.DateField(allow_null=True)
    held_until = serializers.DateField(source="hold.until", default=None, allow_null=True)
    is_held = serializers.SerializerMethodField()
    suspends_since = serializers.DateTimeField(
        allow_null=True, help_text="Since when requests are refused because of it; null: they are not."
    )

    def get_is_held(self, case: Case) -> bool:
        """Return whether an operator holds it."""
        return case.hold is not None


class DunningPolicySerializer(serializers.Serializer[Policy]):
    """Days after an invoice is due, each later than the one before; null: the step is not taken."""

    reminder_days = serializers.IntegerField(min_value=1, max_value=LONGEST_DAYS, allow_null=True, required=False)
    second_reminder_days = serializers.IntegerField(
        min_value=1, max_value=LONGEST_DAYS, allow_null=True, required=False
    )
    notice_days = serializers.IntegerField(min_value=1, max_value=LONGEST_DAYS, allow_null=True, required=False)
    suspension_days = serializers.IntegerField(min_value=1, max_value=LONGEST_DAYS, allow_null=True, required=False)
    least_open_cents = serializers.IntegerField(
        min_value=1, max_value=policy.LARGEST_CENTS, required=False,
        help_text="An invoice of which less is open is left alone; in minor units of its currency.",
    )  # fmt: skip


class NewHoldSerializer(serializers.Serializer[Any]):
    """What is held: an invoice, or all of a tenant's."""

    invoice = serializers.CharField(max_length=64, required=False, help_text="Number or id of an invoice.")
    tenant = serializers.CharField(max_length=63, required=False, help_text="Slug or id of a tenant.")
    reason = serializers.CharField(max_length=LONGEST_REASON, help_text="The tenant sees that of an invoice.")
    until = serializers.DateField(required=False, allow_null=True, default=None, help_text="Its last day.")


class DunningRunSerializer(serializers.Serializer[Ran]):
    """What a run did."""

    steps = serializers.IntegerField()
    failures = serializers.IntegerField(help_text="Invoices that could not be looked at.")


_LIST = page_schema(DunningCaseSerializer, "DunningList")


class DunningView(ApiView):
    """Invoices in dunning."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_dunning",
        parameters=PAGE_PARAMETERS,
        responses={200: _LIST, **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List the invoices in dunning, the newest first. Operators only."""
        page = pagination.page_request(request)
        found = cases.described(pagination.read_page(cases.rows(), page), timezone.now())
        return Response(pagination.page_document(found, DunningCaseSerializer, page.limit))


class TenantDunningView(ApiView):
    """A tenant's invoices in dunning."""

    @extend_schema(
        operation_id="list_tenant_dunning",
        parameters=PAGE_PARAMETERS,
        responses={200: _LIST, **error_responses(400, 403, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """List the tenant's invoices in dunning. For operators, and its owners and billing members."""
        principal, page = principal_of(request), pagination.page_request(request)
        found = _for_bills(principal, tenant)
        with as_tenant(TenantId(found.id)):
            rows = cases.described(pagination.read_page(cases.rows(found), page), timezone.now())
        return Response(pagination.page_document(rows, DunningCaseSerializer, page.limit))


class RunDunningView(ApiView):
    """A run."""

    without_key = "it takes what is due, each step once"
    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="run_dunning", request=None, responses={200: DunningRunSerializer, **error_responses(403)}
    )
    def post(self, request: Request) -> Response:
        """Take the steps that are due now, as beat does every ten minutes. Operators only."""
        return Response(DunningRunSerializer(run.run(timezone.now())).data)


class DunningPolicyView(ApiView):
    """The policy of an issuer, or of a tenant."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="get_dunning_policy",
        parameters=_OF_WHOM,
        responses={200: DunningPolicySerializer, **error_responses(400, 403, 404)},
    )
    def get(self, request: Request) -> Response:
        """Return the policy; 404 for a tenant without one of its own. Operators only."""
        issuer, tenant = _of_whom(request)
        found = policy.of_tenant(tenant) if tenant is not None else policy.of_issuer(issuer)
        if found is None:
            raise NotFound("policy", request.query_params["tenant"])
        return Response(DunningPolicySerializer(found).data)

    @extend_schema(
        operation_id="change_dunning_policy",
        parameters=_OF_WHOM,
        request=DunningPolicySerializer,
        responses={200: DunningPolicySerializer, **error_responses(400, 403, 404)},
    )
    def patch(self, request: Request) -> Response:
        """Change these fields. Invoices keep the steps that they got. Operators only."""
        issuer, tenant = _of_whom(request)
        body = DunningPolicySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        found = policy.set_policy(principal_of(request).actor, dict(body.validated_data), issuer=issuer, tenant=tenant)
        return Response(DunningPolicySerializer(found).data)

    @extend_schema(
        operation_id="remove_dunning_policy",
        parameters=_OF_WHOM,
        responses={204: None, **error_responses(400, 403, 404)},
    )
    def delete(self, request: Request) -> Response:
        """Remove an issuer's policy, so that the default holds, or a tenant's own. Operators only."""
        issuer, tenant = _of_whom(request)
        policy.remove(principal_of(request).actor, issuer=issuer, tenant=tenant)
        return Response(status=204)


class DunningHoldsView(ApiView):
    """Holds."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_dunning_holds",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(DunningHoldSerializer, "DunningHoldList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List the holds that nobody has ended, the newest first. Operators only."""
        page = pagination.page_request(request)
        rows = pagination.read_page(holds.of_all(), page)
        return Response(pagination.page_document(rows, DunningHoldSerializer, page.limit))

    @extend_schema(
        operation_id="hold_dunning",
        request=NewHoldSerializer,
        responses={201: DunningHoldSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request) -> Response:
        """Hold dunning of an invoice, or of all of a tenant's as a grace; a suspension ends at once. Operators only."""
        body = NewHoldSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        given, principal = body.validated_data, principal_of(request)
        if ("invoice" in given) == ("tenant" in given):
            raise ValidationError({"invoice": "Name an invoice or a tenant."})
        invoice = registry.find(given["invoice"]) if "invoice" in given else None
        tenant = (
            Tenant.objects.get(id=invoice.tenant_id) if invoice is not None else tenant_for(principal, given["tenant"])
        )
        row = holding.hold(principal.actor, tenant, given["reason"], invoice=invoice, until=given["until"])
        return Response(DunningHoldSerializer(row).data, status=201)


class EndDunningHoldView(ApiView):
    """The end of a hold."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="end_dunning_hold",
        request=None,
        responses={200: DunningHoldSerializer, **error_responses(403, 404)},
    )
    def post(self, request: Request, hold: UUID) -> Response:
        """End a hold: a suspension comes back at once. Again it changes nothing. Operators only."""
        return Response(DunningHoldSerializer(holding.end(principal_of(request).actor, hold)).data)


def _for_bills(principal: Principal, name: str) -> Tenant:
    """Return the tenant. Raises NotFound for a principal that may not see its money."""
    found = tenant_for(principal, name)
    if not principal.handles_bills_of(found.id):
        raise NotFound("tenant", name)
    return found


def _of_whom(request: Request) -> tuple[str | None, Tenant | None]:
    """Return the name of an issuer, and the tenant whose own policy it is about. Raises ValidationError, NotFound."""
    issuer = query_params.text(request.query_params, "issuer") or None
    slug = query_params.text(request.query_params, "tenant") or None
    if issuer and slug:
        raise ValidationError({"tenant": "Name an issuer or a tenant."})
    return issuer, tenant_for(principal_of(request), slug) if slug else None
