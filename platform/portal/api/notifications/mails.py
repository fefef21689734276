"""``/api/v1/mails``: e-mails about events, and why some were not sent."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from notifications.models import Mail
from portal.api import pagination
from portal.api.authentication import OperatorOnly
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema


class MailSerializer(serializers.Serializer[Mail]):
    """An e-mail to one person about one event."""

    id = serializers.UUIDField(read_only=True)
    event = serializers.UUIDField(source="event_id", read_only=True)
    type = serializers.CharField(source="event.type", read_only=True)
    person = serializers.SerializerMethodField(help_text="Null for an address of a billing account.")
    address = serializers.CharField(read_only=True)
    state = serializers.CharField(read_only=True, help_text="pending, sent, skipped or failed.")
    note = serializers.CharField(read_only=True, help_text="Why it was skipped, or what its last attempt failed with.")
    created_at = serializers.DateTimeField(read_only=True)
    sent_at = serializers.DateTimeField(read_only=True, allow_null=True)

    def get_person(self, mail: Mail) -> str | None:
        """Return the person's name."""
        return None if mail.user is None else mail.user.username


class MailsView(ApiView):
    """E-mails."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_mails",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(MailSerializer, "MailList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List the e-mails of the last 30 days, newest first, also those that were not sent."""
        page = pagination.page_request(request)
        rows = pagination.read_page(Mail.objects.select_related("event", "user"), page)
        return Response(pagination.page_document(rows, MailSerializer, page.limit))
