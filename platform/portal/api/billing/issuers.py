"""``/api/v1/issuers``: the provider's legal entities on invoices."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from billing.invoices import issuers
from billing.models import Issuer
from portal.api import pagination
from portal.api.authentication import OperatorOnly, principal_of
from portal.api.billing.invoice_serializers import IssuerSerializer
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields


class IssuersView(ApiView):
    """All issuers."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_issuers",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(IssuerSerializer, "IssuerList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List the issuers, newest first. Operators only."""
        page = pagination.page_request(request)
        rows = pagination.read_page(Issuer.objects.all(), page)
        return Response(pagination.page_document(rows, IssuerSerializer, page.limit))


class IssuerView(ApiView):
    """One issuer."""

    permission_classes = (OperatorOnly,)

    @extend_schema(operation_id="get_issuer", responses={200: IssuerSerializer, **error_responses(403, 404)})
    def get(self, request: Request, issuer: str) -> Response:
        """Return an issuer. Operators only."""
        return Response(IssuerSerializer(issuers.find(issuer)).data)

    @extend_schema(
        operation_id="set_issuer",
        request=IssuerSerializer,
        responses={200: IssuerSerializer, **error_responses(400, 403, 409)},
    )
    def patch(self, request: Request, issuer: str) -> Response:
        """Set values of an issuer; one of that name is created if there is none. Invoices that exist keep theirs.

        Absent fields stay as they are. Operators only.
        """
        body = IssuerSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        values = dict(body.validated_data)
        make_default = bool(values.pop("is_default", False))
        found = issuers.set_issuer(principal_of(request).actor, issuer, values, make_default=make_default)
        return Response(IssuerSerializer(found).data)
