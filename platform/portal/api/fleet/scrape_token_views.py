"""``/api/v1/fleet/scrape-tokens``: tokens with which Prometheus finds what to scrape."""

from __future__ import annotations

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api import pagination
from portal.api.authentication import OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from tenants.keys import scrape_tokens
from tenants.models import ScrapeToken


class NewScrapeTokenSerializer(serializers.Serializer[ScrapeToken]):
    """The token's name and lifetime."""

    name = serializers.CharField(max_length=scrape_tokens.LONGEST_NAME, default="prometheus")
    days = serializers.IntegerField(
        min_value=1,
        max_value=scrape_tokens.MOST_DAYS,
        default=scrape_tokens.DEFAULT_DAYS,
        help_text="Until it expires.",
    )


class ScrapeTokenSerializer(serializers.Serializer[ScrapeToken]):
    """A token without its secret."""

    id = serializers.UUIDField(read_only=True)
    public_id = serializers.CharField(read_only=True)
    name = serializers.CharField(read_only=True)
    created_by = serializers.CharField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    expires_at = serializers.DateTimeField(read_only=True)
    revoked_at = serializers.DateTimeField(read_only=True, allow_null=True)


class IssuedScrapeTokenSerializer(ScrapeTokenSerializer):
    """A new token with its text, which is shown only once."""

    secret = serializers.CharField(read_only=True, help_text="Send it as `Authorization: Bearer`. Shown once.")


class ScrapeTokensView(ApiView):
    """Tokens for Prometheus."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_scrape_tokens",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(ScrapeTokenSerializer, "ScrapeTokenList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List the tokens, ended ones too, without their secrets."""
        page = pagination.page_request(request)
        rows = pagination.read_page(ScrapeToken.objects.all(), page)
        return Response(pagination.page_document(rows, ScrapeTokenSerializer, page.limit))

    @extend_schema(
        operation_id="create_scrape_token",
        request=NewScrapeTokenSerializer,
        responses={201: IssuedScrapeTokenSerializer, **error_responses(400, 403)},
    )
    def post(self, request: Request) -> Response:
        """Make a token that opens `GET /api/v1/fleet/targets` and nothing else."""
        body = NewScrapeTokenSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        issued = scrape_tokens.issue(principal_of(request).actor, **body.validated_data)
        document = {**ScrapeTokenSerializer(issued.token).data, "secret": issued.secret}
        return Response(document, status=status.HTTP_201_CREATED)


class RevokeScrapeTokenView(ApiView):
    """One token."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="revoke_scrape_token",
        request=None,
        responses={200: ScrapeTokenSerializer, **error_responses(403, 404)},
    )
    def post(self, request: Request, token: UUID) -> Response:
        """Revoke the token."""
        return Response(ScrapeTokenSerializer(scrape_tokens.revoke(principal_of(request).actor, token)).data)
