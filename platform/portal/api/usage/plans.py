"""``/api/v1/plans``: terms beside list prices, which tenants have them, and what they would have cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from billing.errors import BadTerms
from billing.models import Plan, PlanVersion
from billing.months import previews
from billing.months.previews import Preview
from billing.plans import registry, wording
from billing.plans import terms as documents
from billing.plans.registry import Agreed
from billing.plans.terms import Terms
from portal.access import confinement
from portal.access.principal import tenant_for
from portal.api import pagination
from portal.api.authentication import OperatorChanges, OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from portal.api.usage.statements import TermsLineSerializer
from tenants.database.rls import as_tenant
from tenants.ids import TenantId

_TERMS = "As `GET /api/v1/plan-schema` describes it."


class MonthField(serializers.RegexField):
    """A month as YYYY-MM, read as its first day."""

    default_error_messages = {"invalid": "Use a month as YYYY-MM."}

    def __init__(self, **options: Any) -> None:
        super().__init__(r"^(20|21)\d\d-(0[1-9]|1[0-2])$", help_text="As YYYY-MM.", **options)


class PlanVersionSerializer(serializers.Serializer[PlanVersion]):
    """Terms from a month on."""

    from_month = serializers.DateField(format="%Y-%m", read_only=True)
    terms = serializers.DictField(read_only=True, help_text=_TERMS)
    words = serializers.SerializerMethodField(help_text="The terms in plain words.")

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_words(self, version: PlanVersion) -> Sequence[str]:
        """Return what the terms say."""
        return wording.sentences(documents.read(version.terms), version.plan.currency)


class PlanSerializer(serializers.Serializer[Plan]):
    """A plan with its versions, the latest first."""

    id = serializers.UUIDField(read_only=True)
    name = serializers.CharField(read_only=True)
    currency = serializers.CharField(read_only=True)
    tenant_id = serializers.UUIDField(read_only=True, allow_null=True, help_text="The only one to have it; null: any.")
    versions = serializers.SerializerMethodField()
    created_at = serializers.DateTimeField(read_only=True)

    @extend_schema_field(PlanVersionSerializer(many=True))
    def get_versions(self, plan: Plan) -> Any:
        """Return its versions."""
        versions: Any = sorted(plan.versions.all(), key=lambda each: each.from_month, reverse=True)
        return PlanVersionSerializer(versions, many=True).data


class NewTermsSerializer(serializers.Serializer[Any]):
    """The terms of a plan from a month on."""

    from_month = MonthField()
    terms = serializers.DictField(help_text=_TERMS)
    tenant = serializers.CharField(
        default=None, allow_null=True, help_text="Slug or id of the only tenant that may have it; default: any."
    )
    currency = serializers.RegexField(
        r"^[A-Z]{3}$", default=None, allow_null=True, help_text="Default: the tenant's, else USD. It cannot be changed."
    )


class AgreedSerializer(serializers.Serializer[Agreed]):
    """What a tenant has from a month on, until the next entry."""

    from_month = serializers.DateField(format="%Y-%m", read_only=True)
    plan = serializers.CharField(read_only=True, allow_null=True, help_text="null: list prices alone.")
    currency = serializers.CharField(read_only=True)
    terms = serializers.SerializerMethodField(help_text=_TERMS)
    words = serializers.SerializerMethodField(help_text="The terms in plain words.")

    @extend_schema_field(serializers.DictField())
    def get_terms(self, agreed: Agreed) -> dict[str, Any]:
        """Return the document."""
        return documents.document(agreed.terms)

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_words(self, agreed: Agreed) -> Sequence[str]:
        """Return what the terms say."""
        return wording.sentences(agreed.terms, agreed.currency)


class AgreementSerializer(serializers.Serializer[Any]):
    """A tenant's terms, the earliest first. Before the first entry it has list prices alone."""

    tenant = serializers.CharField()
    agreements = AgreedSerializer(many=True)


class AssignSerializer(serializers.Serializer[Any]):
    """Which plan a tenant has from a month on."""

    plan = serializers.CharField(allow_null=True, help_text="null: list prices alone.")
    from_month = MonthField()


class PreviewTermsSerializer(serializers.Serializer[Any]):
    """What to preview."""

    terms = serializers.DictField(default=None, allow_null=True, help_text=f"Default: the latest of the plan. {_TERMS}")
    currency = serializers.RegexField(
        r"^[A-Z]{3}$", default=None, allow_null=True, help_text="Of these terms. Default: the plan's, else USD."
    )


class PreviewSerializer(serializers.Serializer[Preview]):
    """A tenant's last month: what it cost, and what it would have cost."""

    tenant = serializers.CharField(source="month.tenant.slug", read_only=True)
    tenant_id = serializers.UUIDField(source="month.tenant.id", read_only=True)
    month = serializers.CharField(source="month.name", read_only=True)
    currency = serializers.CharField(source="was.currency", default=None, read_only=True, allow_null=True)
    usage_pico = serializers.IntegerField(
        source="was.usage_pico", default=None, read_only=True, allow_null=True, help_text="At list prices."
    )
    was_pico = serializers.IntegerField(source="was.amount_pico", default=None, read_only=True, allow_null=True)
    would_be_pico = serializers.IntegerField(
        source="would_be.amount_pico", default=None, read_only=True, allow_null=True
    )
    change_pico = serializers.IntegerField(read_only=True)
    terms = TermsLineSerializer(source="would_be.terms", many=True, default=(), read_only=True)
    problem = serializers.CharField(read_only=True, help_text="Why there is no such figure; empty: there is one.")


class PlansView(ApiView):
    """The plans."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_plans",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(PlanSerializer, "PlanList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List the plans with their terms, newest first. Operators only."""
        page = pagination.page_request(request)
        rows = pagination.read_page(Plan.objects.prefetch_related("versions"), page)
        return Response(pagination.page_document(rows, PlanSerializer, page.limit))


class PlanView(ApiView):
    """One plan."""

    permission_classes = (OperatorOnly,)

    @extend_schema(operation_id="get_plan", responses={200: PlanSerializer, **error_responses(403, 404)})
    def get(self, request: Request, plan: str) -> Response:
        """Return a plan with its terms. Operators only."""
        return Response(PlanSerializer(registry.find(plan)).data)

    @extend_schema(
        operation_id="set_plan",
        request=NewTermsSerializer,
        responses={200: PlanSerializer, **error_responses(400, 403, 404, 409)},
    )
    def put(self, request: Request, plan: str) -> Response:
        """Set the terms of a plan from a month on; a plan of that name is created if there is none. Operators only."""
        principal = principal_of(request)
        wanted = _valid(NewTermsSerializer(data=request.data))
        version = registry.set_terms(
            principal.actor,
            plan,
            _terms(wanted["terms"]),
            _month(wanted["from_month"]),
            tenant=tenant_for(principal, wanted["tenant"]) if wanted["tenant"] else None,
            currency=wanted["currency"],
        )
        return Response(PlanSerializer(version.plan).data)


class PreviewView(ApiView):
    """What terms would have cost."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="preview_plan",
        parameters=PAGE_PARAMETERS,
        request=PreviewTermsSerializer,
        responses={200: page_schema(PreviewSerializer, "PlanPreviewList"), **error_responses(400, 403, 404)},
    )
    def post(self, request: Request, plan: str) -> Response:
        """Return what each tenant's last month would have cost with a plan, the newest tenant first.

        With `terms`, the plan need not exist. Nothing is changed. Operators only.
        """
        wanted, page, now = (
            _valid(PreviewTermsSerializer(data=request.data)),
            pagination.page_request(request),
            timezone.now(),
        )
        if wanted["terms"] is None:
            found = registry.latest(plan)
            terms, currency = found.terms, found.currency
        else:
            known = Plan.objects.filter(name=plan).values_list("currency", flat=True).first()
            terms, currency = _terms(wanted["terms"]), wanted["currency"] or known or "USD"
        every = sorted(previews.billed_tenants(now), key=lambda tenant: tenant.id, reverse=True)
        tenants = [each for each in every if page.after is None or each.id < page.after][: page.limit + 1]
        rows = list(previews.of_terms(terms, currency, tenants, now))
        return Response(pagination.page_document(rows, PreviewSerializer, page.limit), status=status.HTTP_200_OK)


class SchemaView(ApiView):
    """What terms may contain."""

    permission_classes = (OperatorOnly,)

    @extend_schema(operation_id="get_plan_schema", responses={200: OpenApiTypes.OBJECT, **error_responses(403)})
    def get(self, request: Request) -> Response:
        """Return the JSON schema of terms. Operators only."""
        return Response(documents.json_schema())


class TenantPlanView(ApiView):
    """The terms that a tenant has."""

    permission_classes = (OperatorChanges,)

    @extend_schema(operation_id="get_tenant_plan", responses={200: AgreementSerializer, **error_responses(403, 404)})
    def get(self, request: Request, tenant: str) -> Response:
        """Return a tenant's terms from which month on, also those to come."""
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        confinement.require_whole(principal, found, "A plan")
        with as_tenant(TenantId(found.id)):
            agreed = registry.agreements(found)
            return Response(AgreementSerializer({"tenant": found.slug, "agreements": agreed}).data)

    @extend_schema(
        operation_id="assign_plan",
        request=AssignSerializer,
        responses={200: AgreementSerializer, **error_responses(400, 403, 404, 409)},
    )
    def put(self, request: Request, tenant: str) -> Response:
        """Give a tenant a plan from a month on. Operators only."""
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        wanted = _valid(AssignSerializer(data=request.data))
        registry.assign(principal.actor, found, wanted["plan"], _month(wanted["from_month"]))
        return Response(AgreementSerializer({"tenant": found.slug, "agreements": registry.agreements(found)}).data)


def _valid(body: serializers.Serializer[Any]) -> dict[str, Any]:
    body.is_valid(raise_exception=True)
    reject_unknown_fields(body)
    found: dict[str, Any] = body.validated_data
    return found


def _terms(document: dict[str, Any]) -> Terms:
    """Return the terms in a body. Raises BadTerms, with the field as the body has it."""
    try:
        return documents.read(document)
    except BadTerms as error:
        raise BadTerms(f"terms.{error.field}".removesuffix("."), error.problem) from None


def _month(text: str) -> date:
    return date.fromisoformat(f"{text}-01")
