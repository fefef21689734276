"""``/api/v1/usage/partitions`` and ``/api/v1/usage/exports``: where requests are stored, and what was retired."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponseBase
from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.models import UsageExport
from portal.api import pagination
from portal.api.authentication import OperatorOnly
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import (
    CSV_PARAMETER,
    PAGE_PARAMETERS,
    error_responses,
    page_schema,
    wants_csv,
)
from portal.formats import csv_export
from retention import partition_list
from retention.partition_list import Stored

EXPORT_COLUMNS = (
    "partition",
    "begins_at",
    "ends_at",
    "rows",
    "file_bytes",
    "sha256",
    "node",
    "path",
    "created_at",
    "retired_at",
)


class PartitionSerializer(serializers.Serializer[Stored]):
    """One partition of usage: a day, a whole month of an earlier release, or the default one."""

    name = serializers.CharField(
        read_only=True, help_text="YYYY-MM-DD, YYYY-MM, or default: days that have no partition yet."
    )
    table = serializers.CharField(read_only=True)
    begins_at = serializers.DateTimeField(read_only=True, allow_null=True)
    ends_at = serializers.DateTimeField(read_only=True, allow_null=True, help_text="Exclusive.")
    rows = serializers.IntegerField(read_only=True, allow_null=True, help_text="PostgreSQL's estimate; null: none yet.")
    bytes = serializers.IntegerField(read_only=True, help_text="With indexes.")


class UsageExportSerializer(serializers.Serializer[UsageExport]):
    """The file of a partition: CSV with a header, in gzip."""

    id = serializers.UUIDField(read_only=True)
    partition = serializers.CharField(read_only=True, help_text="The name of its table.")
    begins_at = serializers.DateTimeField(read_only=True)
    ends_at = serializers.DateTimeField(read_only=True, help_text="Exclusive.")
    rows = serializers.IntegerField(read_only=True)
    file_bytes = serializers.IntegerField(read_only=True)
    sha256 = serializers.CharField(read_only=True, help_text="Of the file, in hexadecimal digits.")
    node = serializers.CharField(read_only=True, help_text="The machine that wrote it.")
    path = serializers.CharField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    retired_at = serializers.DateTimeField(
        read_only=True, allow_null=True, help_text="When the partition was dropped; null: not by this export."
    )


class PartitionsView(ApiView):
    """The partitions of usage."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_usage_partitions",
        responses={
            200: inline_serializer(
                "UsagePartitionList",
                {
                    "object": serializers.CharField(help_text="always `list`"),
                    "data": PartitionSerializer(many=True),
                },
            ),
            **error_responses(403),
        },
    )
    def get(self, request: Request) -> Response:
        """List the partitions of usage, oldest first, with their size. Operators only."""
        found: Any = partition_list.read()
        return Response({"object": "list", "data": PartitionSerializer(found, many=True).data})


class UsageExportsView(ApiView):
    """The files of retired partitions."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_usage_exports",
        parameters=[*PAGE_PARAMETERS, CSV_PARAMETER],
        responses={
            (200, "application/json"): page_schema(UsageExportSerializer, "UsageExportList"),
            (200, "text/csv"): str,
            **error_responses(400, 403),
        },
    )
    def get(self, request: Request) -> HttpResponseBase:
        """List the files of retired partitions, the newest first; as CSV all of them. Operators only."""
        if wants_csv(request):
            rows = UsageExport.objects.order_by("-id").values_list(*EXPORT_COLUMNS)
            cells = (tuple(map(csv_export.cell, row)) for row in rows.iterator())
            return csv_export.attachment(request._request, "usage-exports", EXPORT_COLUMNS, cells)
        page = pagination.page_request(request)
        found = pagination.read_page(UsageExport.objects.all(), page)
        return Response(pagination.page_document(found, UsageExportSerializer, page.limit))
