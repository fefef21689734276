"""``/api/v1/tenants/{tenant}/budgets``: the budgets of a tenant, its projects and its keys, with their status."""

from __future__ import annotations

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from billing.budgets.status import BudgetStatus
from billing.models import BudgetAlert
from portal.access.principal import Principal, tenant_for
from portal.access.rights import limit_permissions
from portal.api import pagination
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from portal.api.tenants.limits import SET_BY_HELP, TargetSerializer, target_names
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import BoundSetter, Budget, Tenant
from tenants.policy import budgets
from tenants.policy.budgets import LARGEST_LIMIT_PICO, MOST_ALERTS, BudgetTerms


class AlertSerializer(serializers.Serializer[BudgetAlert]):
    """An alert that a share of the budget was spent. Raised once per period."""

    percent = serializers.IntegerField(read_only=True)
    spent_pico = serializers.IntegerField(read_only=True)
    limit_pico = serializers.IntegerField(read_only=True)
    raised_at = serializers.DateTimeField(read_only=True)


class TermsSerializer(TargetSerializer):
    """The terms of a budget. Money is in pico-units of the tenant's currency (10⁻¹²): $5 is 5000000000000."""

    period = serializers.ChoiceField(
        choices=Budget.Period.choices,
        default=Budget.Period.MONTH.value,
        help_text="Periods start in the tenant's billing time zone, weeks on Monday; total is all time.",
    )
    limit_pico = serializers.IntegerField(min_value=0, max_value=LARGEST_LIMIT_PICO)
    action = serializers.ChoiceField(
        choices=Budget.Action.choices,
        default=Budget.Action.BLOCK.value,
        help_text="block refuses every request that could exceed the limit; alert refuses nothing.",
    )
    alert_percents = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=100),
        default=list,
        max_length=MOST_ALERTS,
        help_text="An alert is raised once per period when this percentage is spent.",
    )


class BudgetSerializer(serializers.Serializer[BudgetStatus]):
    """A budget with its status in the current period."""

    id = serializers.UUIDField(source="budget.id", read_only=True)
    project = serializers.CharField(source="budget.project.slug", default=None, read_only=True, allow_null=True)
    key = serializers.UUIDField(source="budget.key_id", read_only=True, allow_null=True)
    model = serializers.CharField(source="budget.model_name", read_only=True)
    period = serializers.ChoiceField(source="budget.period", choices=Budget.Period.choices, read_only=True)
    limit_pico = serializers.IntegerField(source="budget.limit_pico", read_only=True)
    currency = serializers.CharField(source="budget.currency", read_only=True)
    action = serializers.ChoiceField(source="budget.action", choices=Budget.Action.choices, read_only=True)
    alert_percents = serializers.ListField(
        source="budget.alert_percents", child=serializers.IntegerField(), read_only=True
    )
    set_by = serializers.ChoiceField(
        source="budget.set_by", choices=BoundSetter.choices, read_only=True, help_text=SET_BY_HELP
    )
    created_at = serializers.DateTimeField(source="budget.created_at", read_only=True)
    starts_at = serializers.DateTimeField(read_only=True, allow_null=True, help_text="null: all time.")
    ends_at = serializers.DateTimeField(read_only=True, allow_null=True, help_text="null: no end.")
    spent_pico = serializers.IntegerField(read_only=True, help_text="The charges of stored usage.")
    held_pico = serializers.IntegerField(
        read_only=True,
        allow_null=True,
        help_text="Held for running requests, and charges not stored yet; null while Redis is unavailable.",
    )
    left_pico = serializers.IntegerField(read_only=True)
    forecast_pico = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Spending at the end of the period at the current rate."
    )
    alerts = AlertSerializer(many=True, read_only=True)


class BudgetsView(ApiView):
    """A tenant's budgets."""

    @extend_schema(
        operation_id="list_budgets",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(BudgetSerializer, "BudgetList"), **error_responses(400, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """List the active budgets with the amounts spent, held and left, newest first.

        A key that is not tenant-wide sees those of its project and the project's keys.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        page = pagination.page_request(request)
        with as_tenant(TenantId(found.id)):
            rows = pagination.read_page(limit_permissions.budgets_of(principal, found), page)
        shown = limit_permissions.budget_statuses_of(found, rows)
        return Response(pagination.page_document(shown, BudgetSerializer, page.limit))

    @extend_schema(
        operation_id="set_budget",
        request=TermsSerializer,
        responses={200: BudgetSerializer, 201: BudgetSerializer, **error_responses(400, 403, 404, 409)},
    )
    def put(self, request: Request, tenant: str) -> Response:
        """Create or change the budget of a tenant, project or key for this period.

        Spending since the start of the period counts. Operators set any budget; owners and keys with the scope
        `management:write` set those of projects and keys.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        body = TermsSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        wanted = body.validated_data
        subject = limit_permissions.target_for(principal, found, target_names(wanted))
        terms = BudgetTerms(**{name: wanted[name] for name in ("limit_pico", "period", "action", "alert_percents")})
        budget, created = budgets.put(principal.actor, subject, terms)
        return Response(_read(found, budget), status=status.HTTP_201_CREATED if created else status.HTTP_200_OK)


class BudgetView(ApiView):
    """One budget."""

    @extend_schema(operation_id="get_budget", responses={200: BudgetSerializer, **error_responses(404)})
    def get(self, request: Request, tenant: str, budget: UUID) -> Response:
        """Return the budget with the amounts spent, held and left."""
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        return Response(_read(found, _budget(principal, found, budget)))

    @extend_schema(operation_id="archive_budget", responses={204: None, **error_responses(403, 404)})
    def delete(self, request: Request, tenant: str, budget: UUID) -> Response:
        """Archive the budget: it stops applying within a second. Its spending stays on record."""
        principal = principal_of(request)
        found = _budget(principal, tenant_for(principal, tenant), budget)
        limit_permissions.require_may_change(principal, found)
        budgets.archive(principal.actor, found)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _read(tenant: Tenant, budget: Budget) -> object:
    return BudgetSerializer(limit_permissions.budget_statuses_of(tenant, [budget])[0]).data


def _budget(principal: Principal, tenant: Tenant, budget_id: UUID) -> Budget:
    return limit_permissions.rule_of(tenant, limit_permissions.budgets_of(principal, tenant), "budget", budget_id)
