"""``/api/v1/billing/runs``: what the role ``background`` does for every tenant or line. Operators only."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from billing import tasks
from billing.models import BillingRun
from billing.runs import registry
from billing.runs.registry import Problem, Progress
from portal.api import pagination
from portal.api.authentication import OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from portal.reporting import periods

#: Tenants or lines for which nothing was done that a document names.
MOST_PROBLEMS = 1000


class BillingRunProblemSerializer(serializers.Serializer[Problem]):
    """A tenant or line for which nothing was done."""

    subject = serializers.CharField(
        read_only=True, help_text="Slug of the tenant, or the bank's reference of the line."
    )
    outcome = serializers.ChoiceField(
        choices=("refused", "failed"), read_only=True, help_text="failed: by an error; a new run tries it again."
    )
    reason = serializers.CharField(read_only=True)


class BillingRunSerializer(serializers.Serializer[Progress]):
    """How far a run is."""

    id = serializers.UUIDField(source="run.id", read_only=True)
    kind = serializers.ChoiceField(source="run.kind", choices=BillingRun.Kind.choices, read_only=True)
    month = serializers.CharField(source="run.month", read_only=True, help_text="As YYYY-MM; empty for match_payments.")
    state = serializers.ChoiceField(choices=("waiting", "running", "stopped", "finished"), read_only=True)
    total = serializers.IntegerField(read_only=True, help_text="Of how many tenants, or lines, it is.")
    waiting = serializers.IntegerField(source="counts.waiting", read_only=True)
    done = serializers.IntegerField(source="counts.done", read_only=True)
    unchanged = serializers.IntegerField(
        source="counts.unchanged", read_only=True, help_text="For which it had been done before."
    )
    refused = serializers.IntegerField(source="counts.refused", read_only=True)
    failed = serializers.IntegerField(source="counts.failed", read_only=True)
    stopped = serializers.IntegerField(
        source="counts.stopped", read_only=True, help_text="For which nothing was tried: it was stopped before."
    )
    problems = BillingRunProblemSerializer(
        many=True, read_only=True, help_text=f"Refused and failed, at most {MOST_PROBLEMS}."
    )
    requested_by = serializers.CharField(source="run.actor", read_only=True)
    requested_at = serializers.DateTimeField(source="run.requested_at", read_only=True)
    stopped_by = serializers.CharField(source="run.stopped_by", read_only=True)
    finished_at = serializers.DateTimeField(source="run.finished_at", read_only=True, allow_null=True)


class BeginBillingRunSerializer(serializers.Serializer[Any]):
    """What is done for every tenant."""

    kind = serializers.ChoiceField(
        choices=BillingRun.Kind.choices, help_text="match_payments is begun by importing a bank statement."
    )
    month = serializers.CharField(max_length=7, help_text="As YYYY-MM.")


class BillingRunsView(ApiView):
    """Runs."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_billing_runs",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(BillingRunSerializer, "BillingRunList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List runs, the newest first. Operators only."""
        page = pagination.page_request(request)
        rows = pagination.read_page(BillingRun.objects.all(), page)
        document = pagination.page_document(rows, _ListedSerializer, page.limit)
        return Response(document)

    @extend_schema(
        operation_id="begin_billing_run",
        request=BeginBillingRunSerializer,
        responses={200: BillingRunSerializer, 202: BillingRunSerializer, **error_responses(400, 403, 404)},
    )
    def post(self, request: Request) -> Response:
        """Close a month of every tenant, or make the invoices of every tenant whose month is closed: 202, then read it.

        200 with the one that runs already. Operators only.
        """
        body = BeginBillingRunSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        if body.validated_data["kind"] == BillingRun.Kind.MATCH_PAYMENTS:
            raise ValidationError({"kind": "Import a bank statement: POST /api/v1/payments/import."})
        month = periods.parse_month(body.validated_data["month"], timezone.now())
        with transaction.atomic():
            run, new = registry.begin(principal_of(request).actor, body.validated_data["kind"], month)
            transaction.on_commit(tasks.send_advance_runs)
        return _document(run, status.HTTP_202_ACCEPTED if new else status.HTTP_200_OK)


class BillingRunView(ApiView):
    """One run."""

    permission_classes = (OperatorOnly,)

    @extend_schema(operation_id="get_billing_run", responses={200: BillingRunSerializer, **error_responses(403, 404)})
    def get(self, request: Request, run: UUID) -> Response:
        """Return how far a run is. Operators only."""
        return _document(registry.find(run))


class StopBillingRunView(ApiView):
    """A run that ends before it is through."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="stop_billing_run",
        request=None,
        responses={200: BillingRunSerializer, **error_responses(403, 404)},
    )
    def post(self, request: Request, run: UUID) -> Response:
        """Do nothing for the tenants that still wait; what is done stays. One that is over stays so. Operators only."""
        return _document(registry.stop(principal_of(request).actor, run))


class _ListedSerializer(BillingRunSerializer):
    """A run of a list."""

    def to_representation(self, instance: Any) -> dict[str, Any]:
        """Return the document of a run."""
        found: dict[str, Any] = super().to_representation(registry.progress(instance, MOST_PROBLEMS))
        return found


def _document(run: BillingRun, code: int = status.HTTP_200_OK) -> Response:
    return Response(BillingRunSerializer(registry.progress(run, MOST_PROBLEMS)).data, status=code)
