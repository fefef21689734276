"""``/api/v1/fleet``: what runs where, how warm, and the verbs that change it. For operators.

A verb says how things shall be; sent twice it changes nothing more. Each is ``workers.fleet.operations``', as is what
``celery -A hearth control`` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.api.authentication import OperatorOnly, principal_of
from portal.api.fleet.serializers import (
    DeploymentSerializer,
    EffectSerializer,
    FleetSerializer,
    PromoteSerializer,
    ScaleSerializer,
    TargetSerializer,
    WarmSerializer,
)
from portal.api.openapi_parameters import error_responses, reject_unknown_fields
from portal.fleet import actions
from workers.errors import NotFound
from workers.fleet import inventory, operations
from workers.fleet.operations import Effect, ScalingTarget

_Post = TypeVar("_Post", bound=Callable[..., Response])


def _verb(operation: str, asked: type[serializers.Serializer[Any]] | None = None) -> Callable[[_Post], _Post]:
    """Describe a verb to OpenAPI."""
    answers = {200: EffectSerializer, **error_responses(400, 403, 404, 409)}
    described: Callable[[_Post], _Post] = extend_schema(operation_id=operation, request=asked, responses=answers)
    return described


def _read(asked: serializers.Serializer[Any]) -> dict[str, Any]:
    asked.is_valid(raise_exception=True)
    reject_unknown_fields(asked)
    values: dict[str, Any] = asked.validated_data
    return values


def _answer(effect: Effect) -> Response:
    return Response(EffectSerializer(effect).data)


class FleetView(APIView):
    """The fleet."""

    permission_classes = (OperatorOnly,)

    @extend_schema(operation_id="get_fleet", responses={200: FleetSerializer, **error_responses(403)})
    def get(self, request: Request) -> Response:
        """Return deployments with their replicas, pools with their nodes and slots, and the newest decisions."""
        return Response(FleetSerializer(inventory.read()).data)


class ScaleView(APIView):
    """How much of a deployment should run."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="scale_deployment",
        request=ScaleSerializer,
        responses={200: DeploymentSerializer, **error_responses(400, 403, 404)},
    )
    def post(self, request: Request, deployment: str) -> Response:
        """Set the number of replicas, or the bounds between which scaling moves; reconcile makes it so."""
        asked = _read(ScaleSerializer(data=request.data))
        operations.scale(principal_of(request).actor, deployment, asked["min_replicas"], asked["max_replicas"])
        found = next((each for each in inventory.read().deployments if each.name == deployment), None)
        if found is None:
            raise NotFound("deployment", deployment)
        return Response(DeploymentSerializer(found).data)


class TargetView(APIView):
    """What scaling aims at."""

    permission_classes = (OperatorOnly,)

    @_verb("set_deployment_target", TargetSerializer)
    def post(self, request: Request, deployment: str) -> Response:
        """Set the tokens in flight that one replica is meant to have, and the delays of scaling."""
        asked = _read(TargetSerializer(data=request.data))
        return _answer(operations.set_target(principal_of(request).actor, deployment, ScalingTarget(**asked)))


class DrainReplicaView(APIView):
    """A replica's end."""

    permission_classes = (OperatorOnly,)

    @_verb("drain_replica")
    def post(self, request: Request, replica: UUID) -> Response:
        """Have the replica replaced: it serves until another does, then ends its requests and stops."""
        return _answer(operations.drain(principal_of(request).actor, str(replica)))


class DrainNodeView(APIView):
    """A node's end."""

    permission_classes = (OperatorOnly,)

    @_verb("drain_node")
    def post(self, request: Request, node: str) -> Response:
        """Cordon the node, evict its placeholders, and have each of its replicas replaced elsewhere."""
        return _answer(actions.drain_node(principal_of(request).actor, node))


class CordonView(APIView):
    """A node that gets nothing new."""

    permission_classes = (OperatorOnly,)

    @_verb("cordon_node")
    def post(self, request: Request, node: str) -> Response:
        """Place nothing new on the node; what runs there goes on."""
        return _answer(operations.cordon(principal_of(request).actor, node))


class UncordonView(APIView):
    """A node that is offered again."""

    permission_classes = (OperatorOnly,)

    @_verb("uncordon_node")
    def post(self, request: Request, node: str) -> Response:
        """Offer the node again, and keep those of its replicas whose drain has not begun to stop them."""
        return _answer(operations.uncordon(principal_of(request).actor, node))


class EvictView(APIView):
    """A placeholder's end."""

    permission_classes = (OperatorOnly,)

    @_verb("evict_placeholder")
    def post(self, request: Request, placeholder: UUID) -> Response:
        """Free the placeholder's slot and have its process killed; its pool makes a new one while it wants more."""
        return _answer(operations.evict(principal_of(request).actor, str(placeholder)))


class PromoteView(APIView):
    """A placeholder's use."""

    permission_classes = (OperatorOnly,)

    @_verb("promote_placeholder", PromoteSerializer)
    def post(self, request: Request, placeholder: UUID) -> Response:
        """Make the placeholder a replica of a deployment now, within the deployment's maximum."""
        asked = _read(PromoteSerializer(data=request.data))
        return _answer(operations.promote(principal_of(request).actor, str(placeholder), asked["deployment"]))


class RestoreView(APIView):
    """A slot that was quarantined."""

    permission_classes = (OperatorOnly,)

    @_verb("restore_slot")
    def post(self, request: Request, slot: UUID) -> Response:
        """Use a quarantined slot again; its agent may quarantine it anew."""
        return _answer(actions.restore(principal_of(request).actor, str(slot)))


class WarmView(APIView):
    """A pool's placeholders."""

    permission_classes = (OperatorOnly,)

    @_verb("warm_pool", WarmSerializer)
    def post(self, request: Request, pool: str) -> Response:
        """Set how many placeholders each node of the pool keeps, and how warm."""
        asked = _read(WarmSerializer(data=request.data))
        actor = principal_of(request).actor
        return _answer(operations.warm(actor, pool, asked["placeholders_per_node"], asked.get("level")))
