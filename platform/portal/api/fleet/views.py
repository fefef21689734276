"""``/api/v1/fleet``: what runs where, and the verbs that change it. For operators.

Sending a verb twice changes nothing more. ``workers.fleet.verbs`` has the texts, ``workers.fleet.operations`` does
the work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.authentication import OperatorOnly, principal_of
from portal.api.fleet import document_view
from portal.api.fleet.serializers import (
    DeploymentSerializer,
    EffectSerializer,
    FleetSerializer,
    ObjectivesSerializer,
    PoolSettingsSerializer,
    PromoteSerializer,
    RequirementsSerializer,
    RolloutPolicySerializer,
    RoutingSerializer,
    ScaleSerializer,
    WarmSerializer,
)
from portal.api.fleet.target_serializers import TargetSerializer
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses, reject_unknown_fields
from portal.api.text_body import TextParser
from tenants.audit import Actor
from workers.errors import NotFound
from workers.fleet import lookup, operations
from workers.fleet.operations import Effect, ScalingTarget
from workers.fleet.status import inventory
from workers.fleet.verbs import VERBS


def _read(body: serializers.Serializer[Any]) -> dict[str, Any]:
    body.is_valid(raise_exception=True)
    reject_unknown_fields(body)
    values: dict[str, Any] = body.validated_data
    return values


def _verb_view(
    verb: str, operation: str, run: Callable[..., Effect], body: type[serializers.Serializer[Any]] | None = None
) -> type[ApiView]:
    """Return a view whose POST calls ``run`` with the actor, the target in the URL and the fields of the body."""

    @extend_schema(
        operation_id=operation,
        description=VERBS[verb].description,
        request=body,
        responses={200: EffectSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(view: ApiView, request: Request, **target: object) -> Response:
        values = {} if body is None else _read(body(data=request.data))
        effect = run(principal_of(request).actor, *map(str, target.values()), **values)
        return Response(EffectSerializer(effect).data)

    return type(f"{operation}_view", (ApiView,), {"permission_classes": (OperatorOnly,), "post": post})


def _set_target(actor: Actor, deployment: str, **target: Any) -> Effect:
    return operations.set_target(actor, deployment, ScalingTarget(**target))


def _set_rollout_policy(actor: Actor, deployment: str, **settings: Any) -> Effect:
    return operations.rollout_policy(actor, deployment, settings)


def _warm(actor: Actor, pool: str, placeholders_per_node: int, level: str | None = None) -> Effect:
    return operations.warm(actor, pool, placeholders_per_node, level)


def _restore(actor: Actor, slot: str) -> Effect:
    return operations.restore(actor, *lookup.slot_address(slot))


class FleetView(ApiView):
    """The fleet."""

    permission_classes = (OperatorOnly,)
    parser_classes = (TextParser,)
    put = document_view.describe(document_view.put)

    @extend_schema(operation_id="get_fleet", responses={200: FleetSerializer, **error_responses(403)})
    def get(self, request: Request) -> Response:
        """Return deployments with their replicas, pools with their nodes and slots, and the newest decisions."""
        return Response(FleetSerializer(inventory.read()).data)


class ScaleView(ApiView):
    """How many replicas of a deployment should run."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="scale_deployment",
        description=VERBS["scale"].description,
        request=ScaleSerializer,
        responses={200: DeploymentSerializer, **error_responses(400, 403, 404)},
    )
    def post(self, request: Request, deployment: str) -> Response:
        """Set the bounds, and return the deployment as it is then."""
        bounds = _read(ScaleSerializer(data=request.data))
        operations.scale(principal_of(request).actor, deployment, bounds["min_replicas"], bounds["max_replicas"])
        found = next((each for each in inventory.read().deployments if each.name == deployment), None)
        if found is None:
            raise NotFound("deployment", deployment)
        return Response(DeploymentSerializer(found).data)


TargetView = _verb_view("target", "set_deployment_target", _set_target, TargetSerializer)
RoutingView = _verb_view("route", "set_deployment_routing", operations.route, RoutingSerializer)
DrainReplicaView = _verb_view("drain", "drain_replica", operations.drain)
DrainNodeView = _verb_view("drain", "drain_node", operations.drain_node)
CordonView = _verb_view("cordon", "cordon_node", operations.cordon)
UncordonView = _verb_view("uncordon", "uncordon_node", operations.uncordon)
EvictView = _verb_view("evict", "evict_placeholder", operations.evict)
PromoteView = _verb_view("promote", "promote_placeholder", operations.promote, PromoteSerializer)
RestoreView = _verb_view("restore", "restore_slot", _restore)
PauseRolloutView = _verb_view("rollout_pause", "pause_rollout", operations.rollout_pause)
ResumeRolloutView = _verb_view("rollout_resume", "resume_rollout", operations.rollout_resume)
UndoRolloutView = _verb_view("rollout_undo", "undo_rollout", operations.rollout_undo)
RolloutPolicyView = _verb_view("rollout_policy", "set_rollout_policy", _set_rollout_policy, RolloutPolicySerializer)
RestartRolloutView = _verb_view("rollout_restart", "restart_deployment", operations.rollout_restart)
PoolSettingsView = _verb_view("pool_set", "set_pool", operations.pool_set, PoolSettingsSerializer)
ObjectivesView = _verb_view("objective", "set_deployment_objectives", operations.set_objectives, ObjectivesSerializer)
RequirementsView = _verb_view("require", "set_deployment_requirements", operations.require, RequirementsSerializer)
WarmView = _verb_view("warm", "warm_pool", _warm, WarmSerializer)
