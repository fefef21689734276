"""``/api/v1/fleet/node-tokens``, ``/fleet/join``, ``/fleet/nodes/…/remove``: how machines join, and leave for good."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from django.core.cache.backends.locmem import LocMemCache
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import ParseError, PermissionDenied
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView

from portal.access.requests.addresses import client_address
from portal.api import pagination
from portal.api.authentication import OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from tenants import networks
from workers.fleet.joining import join_messages, node_joining, node_tokens
from workers.fleet.joining.join_messages import SignedRequest
from workers.fleet.joining.node_joining import NotAdmitted, Removed
from workers.models import NodeToken

LONGEST_BODY_BYTES = 2 * join_messages.LONGEST_REQUEST
NOT_ADMITTED = (
    "This token is none of this cluster, or was altered. Make one with `hearth node token` on the first machine."
)


class NewNodeTokenSerializer(serializers.Serializer[NodeToken]):
    """For which pool, for how long, and for which name."""

    pool = serializers.CharField(max_length=63)
    minutes = serializers.IntegerField(
        min_value=1, max_value=node_tokens.MOST_MINUTES, default=node_tokens.DEFAULT_MINUTES
    )
    node = serializers.CharField(
        max_length=51,
        default="",
        allow_blank=True,
        help_text="The only name that a machine may join with; a node that exists is replaced. Empty: any new name.",
    )
    portal = serializers.URLField(
        max_length=300,
        required=False,
        help_text="Address at which the new machine reaches the portal. By default that of this request.",
    )


class NodeTokenSerializer(serializers.Serializer[NodeToken]):
    """A token without its secret."""

    id = serializers.UUIDField(read_only=True)
    pool = serializers.CharField(read_only=True, source="pool.name")
    node = serializers.CharField(read_only=True, source="node_name")
    created_by = serializers.CharField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    expires_at = serializers.DateTimeField(read_only=True)
    revoked_at = serializers.DateTimeField(read_only=True, allow_null=True)
    used_at = serializers.DateTimeField(read_only=True, allow_null=True)
    used_by = serializers.CharField(read_only=True)


class IssuedNodeTokenSerializer(NodeTokenSerializer):
    """A new token with its text, which is shown only once."""

    secret = serializers.CharField(read_only=True, help_text="Shown once.")
    command = serializers.CharField(read_only=True, help_text="What to enter on the new machine.")


class SignedRequestSerializer(serializers.Serializer[Any]):
    """What `hearth node join` sends: a request with a MAC under the token's secret."""

    token = serializers.CharField(max_length=36)
    request = serializers.CharField(max_length=join_messages.LONGEST_REQUEST)
    mac = serializers.CharField(max_length=64)


class SealedReplySerializer(serializers.Serializer[Any]):
    """What a node needs, sealed for the machine that asked."""

    sealed = serializers.CharField(read_only=True)
    mac = serializers.CharField(read_only=True)


class RemovedSerializer(serializers.Serializer[Removed]):
    """What was removed."""

    node = serializers.CharField(read_only=True)
    replicas = serializers.IntegerField(read_only=True, help_text="Replicas of it that had not ended.")
    statement = serializers.CharField(
        read_only=True, help_text="What a superuser of PostgreSQL still has to run; empty if nothing."
    )


class _JoinLimit(SimpleRateThrottle):
    """Requests to join in a minute; counted in this process, before a body is read."""

    cache = LocMemCache("joins", {"OPTIONS": {"MAX_ENTRIES": 10_000}})

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        """Return the name of the count."""
        return f"join:{self.who(request)}"

    def who(self, request: Request) -> str:
        """Return what is counted together."""
        return networks.client_network(client_address(request._request))


class JoinsOfClient(_JoinLimit):
    """Of one client."""

    rate = "20/min"


class JoinsOfAll(_JoinLimit):
    """Of all clients together."""

    rate = "300/min"

    def who(self, request: Request) -> str:
        """Return one name for all."""
        return "all"


class NodeTokensView(ApiView):
    """Tokens for machines that join."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_node_tokens",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(NodeTokenSerializer, "NodeTokenList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List the tokens, used and ended ones too, without their secrets."""
        page = pagination.page_request(request)
        rows = pagination.read_page(NodeToken.objects.select_related("pool"), page)
        return Response(pagination.page_document(rows, NodeTokenSerializer, page.limit))

    @extend_schema(
        operation_id="create_node_token",
        request=NewNodeTokenSerializer,
        responses={201: IssuedNodeTokenSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request) -> Response:
        """Make a token with which one machine joins one pool, once."""
        body = NewNodeTokenSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        wanted = body.validated_data
        portal = wanted.get("portal") or request.build_absolute_uri("/").rstrip("/")
        issued = node_tokens.issue(
            principal_of(request).actor,
            pool=wanted["pool"],
            portal=portal,
            minutes=wanted["minutes"],
            node=wanted["node"],
        )
        document = {**NodeTokenSerializer(issued.token).data, "secret": issued.text, "command": issued.command}
        return Response(document, status=status.HTTP_201_CREATED)


class RevokeNodeTokenView(ApiView):
    """One token."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="revoke_node_token",
        request=None,
        responses={200: NodeTokenSerializer, **error_responses(403, 404)},
    )
    def post(self, request: Request, token: UUID) -> Response:
        """Revoke the token. A node that joined with it stays."""
        return Response(NodeTokenSerializer(node_tokens.revoke(principal_of(request).actor, token)).data)


class JoinView(ApiView):
    """The door for machines with a token. Who does not know a token's secret learns nothing here."""

    without_key = "nobody is known yet to whom a key could belong"
    authentication_classes = ()
    permission_classes = (AllowAny,)
    throttle_classes = (JoinsOfClient, JoinsOfAll)

    @extend_schema(
        operation_id="join_node",
        auth=[],
        request=SignedRequestSerializer,
        responses={200: SealedReplySerializer, **error_responses(400, 403, 409, 429)},
    )
    def post(self, request: Request) -> Response:
        """Make the machine a node, for `hearth node join`."""
        length = request.META.get("CONTENT_LENGTH") or ""
        if not length.isdecimal() or int(length) > LONGEST_BODY_BYTES:
            raise ParseError(f"Send at most {LONGEST_BODY_BYTES} bytes, with Content-Length.")
        body = SignedRequestSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        try:
            reply = node_joining.join(SignedRequest(**body.validated_data))
        except NotAdmitted:
            raise PermissionDenied(NOT_ADMITTED) from None
        return Response(msgspec.structs.asdict(reply))


class RemoveNodeView(ApiView):
    """A node that does not come back."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="remove_node", request=None, responses={200: RemovedSerializer, **error_responses(403, 404, 409)}
    )
    def post(self, request: Request, node: str) -> Response:
        """Remove the node for good: its certificate, its rights, and what runs on it by the database."""
        return Response(RemovedSerializer(node_joining.remove(principal_of(request).actor, node)).data)
