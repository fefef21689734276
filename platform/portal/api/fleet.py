"""``/api/v1/fleet``: what runs where, and how much of it should. For operators."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal import fleet
from portal.api.authentication import OperatorOnly, viewer_of
from portal.api.documents import refusals
from workers import deployments
from workers.errors import NotFound


class EventSerializer(serializers.Serializer[fleet.EventStatus]):
    """One transition of a replica."""

    at = serializers.DateTimeField(read_only=True)
    from_state = serializers.CharField(read_only=True)
    to_state = serializers.CharField(read_only=True)
    reason = serializers.CharField(read_only=True)


class ReplicaSerializer(serializers.Serializer[fleet.ReplicaStatus]):
    """One engine, with its last events, newest first."""

    id = serializers.UUIDField(read_only=True)
    deployment = serializers.CharField(read_only=True)
    model = serializers.CharField(read_only=True)
    node = serializers.CharField(read_only=True, allow_null=True)
    state = serializers.CharField(read_only=True)
    since = serializers.DateTimeField(read_only=True)
    running_requests = serializers.IntegerField(read_only=True)
    waiting_requests = serializers.IntegerField(read_only=True)
    kv_usage = serializers.FloatField(read_only=True, help_text="0 to 1.")
    startup_seconds = serializers.FloatField(
        read_only=True, allow_null=True, help_text="From spawn to the first token of the canary."
    )
    generation = serializers.IntegerField(read_only=True, help_text="Engine processes so far.")
    attempts = serializers.IntegerField(read_only=True)
    next_attempt_at = serializers.DateTimeField(read_only=True, allow_null=True)
    last_error = serializers.CharField(read_only=True)
    events = EventSerializer(many=True, read_only=True)


class DeploymentSerializer(serializers.Serializer[fleet.DeploymentStatus]):
    """What should run, and what does."""

    name = serializers.CharField(read_only=True)
    model = serializers.CharField(read_only=True)
    engine = serializers.CharField(read_only=True)
    desired_replicas = serializers.IntegerField(source="desired", read_only=True)
    ready_replicas = serializers.IntegerField(source="ready", read_only=True)
    replicas = ReplicaSerializer(many=True, read_only=True)


class NodeSerializer(serializers.Serializer[fleet.NodeStatus]):
    """A machine with an agent."""

    id = serializers.UUIDField(read_only=True)
    name = serializers.CharField(read_only=True)
    alive = serializers.BooleanField(read_only=True, help_text="The agent renews its lease.")
    cordoned = serializers.BooleanField(read_only=True)
    slots = serializers.IntegerField(source="slot_count", read_only=True)


class PoolSerializer(serializers.Serializer[fleet.PoolStatus]):
    """Nodes of one kind; the pool with the lowest priority is filled first."""

    name = serializers.CharField(read_only=True)
    kind = serializers.CharField(read_only=True)
    region = serializers.CharField(read_only=True)
    priority = serializers.IntegerField(read_only=True)
    nodes = NodeSerializer(many=True, read_only=True)


class FleetSerializer(serializers.Serializer[fleet.Fleet]):
    """Everything, read at one moment."""

    deployments = DeploymentSerializer(many=True, read_only=True)
    pools = PoolSerializer(many=True, read_only=True)


class ScaleSerializer(serializers.Serializer[Any]):
    """How many replicas a deployment shall have."""

    replicas = serializers.IntegerField(min_value=0, max_value=deployments.MAX_REPLICAS)


class FleetView(APIView):
    """The fleet."""

    permission_classes = (OperatorOnly,)

    @extend_schema(operation_id="get_fleet", responses={200: FleetSerializer, **refusals(403)})
    def get(self, request: Request) -> Response:
        """Return deployments with their replicas, and pools with their nodes."""
        return Response(FleetSerializer(fleet.read()).data)


class ScaleView(APIView):
    """How much of a deployment should run."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="scale_deployment",
        request=ScaleSerializer,
        responses={200: DeploymentSerializer, **refusals(400, 403, 404)},
    )
    def post(self, request: Request, deployment: str) -> Response:
        """Set the number of replicas; reconcile makes it so. The same number twice changes nothing."""
        asked = ScaleSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        deployments.scale(viewer_of(request).actor, deployment, asked.validated_data["replicas"])
        found = next((each for each in fleet.read().deployments if each.name == deployment), None)
        if found is None:
            raise NotFound("deployment", deployment)
        return Response(DeploymentSerializer(found).data)
