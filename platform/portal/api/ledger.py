"""``/api/v1/ledger/verification``: whether the ledger is right."""

from __future__ import annotations

from datetime import UTC, datetime

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.authentication import OperatorOnly
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses
from portal.reporting import periods
from reconciliation import ledger
from reconciliation.ledger import Balance, Check, Difference, Verification


class DifferenceSerializer(serializers.Serializer[Difference]):
    """What differs, in pico-units or as a number."""

    tenant_id = serializers.UUIDField(read_only=True)
    subject = serializers.CharField(read_only=True)
    expected = serializers.IntegerField(read_only=True)
    found = serializers.IntegerField(read_only=True)


class LedgerCheckSerializer(serializers.Serializer[Check]):
    """What should hold, and the first places where it does not."""

    name = serializers.CharField(read_only=True)
    about = serializers.CharField(read_only=True)
    differences = DifferenceSerializer(many=True, read_only=True)


class LedgerBalanceSerializer(serializers.Serializer[Balance]):
    """The balance of all accounts of one kind, in pico-units, debit positive."""

    kind = serializers.CharField(read_only=True)
    currency = serializers.CharField(read_only=True)
    amount_pico = serializers.IntegerField(read_only=True)


class VerificationSerializer(serializers.Serializer[Verification]):
    """All checks."""

    is_right = serializers.BooleanField(read_only=True, help_text="Nothing differs.")
    postings = serializers.IntegerField(read_only=True)
    checks = LedgerCheckSerializer(many=True, read_only=True)
    balances = LedgerBalanceSerializer(many=True, read_only=True)


class LedgerVerificationView(ApiView):
    """The ledger, verified now."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="verify_ledger",
        parameters=[
            OpenApiParameter(
                "since",
                str,
                description="First month whose requests and closing are compared, as YYYY-MM (UTC); default: this one.",
            )
        ],
        responses={200: VerificationSerializer, **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """Verify the ledger; changes nothing. Operators only.

        All postings must balance, requests must have been posted once and as charged, credit must be what is unused,
        and closed months must equal their postings.
        """
        now = timezone.now()
        month = periods.parse_month(request.query_params.get("since") or f"{now:%Y-%m}", now)
        return Response(VerificationSerializer(ledger.verify(datetime(month.year, month.month, 1, tzinfo=UTC))).data)
