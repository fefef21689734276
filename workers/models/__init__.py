"""The room's models. Django finds models only here."""

from __future__ import annotations

from workers.models.adapters import AdapterLoad
from workers.models.boots import EngineBoot
from workers.models.deferred import DeferredRequest
from workers.models.deployments import Deployment, DeploymentPool
from workers.models.nodes import Level, Node, NodeCertificate, NodeToken, Pool, Slot
from workers.models.placeholders import Placeholder, SlotLease, SlotWait
from workers.models.replicas import Replica, ReplicaEvent, StartTime
from workers.models.rollouts import Rollout, RolloutTraffic
from workers.models.scaling import GatewayLoad, LoadCurve, ScaleDecision
from workers.models.weights import ModelSecret, Secret, StagedWeights, Weights

__all__ = [
    "AdapterLoad",
    "DeferredRequest",
    "Deployment",
    "DeploymentPool",
    "EngineBoot",
    "GatewayLoad",
    "Level",
    "LoadCurve",
    "ModelSecret",
    "Node",
    "NodeCertificate",
    "NodeToken",
    "Placeholder",
    "Pool",
    "Replica",
    "ReplicaEvent",
    "Rollout",
    "RolloutTraffic",
    "ScaleDecision",
    "Secret",
    "Slot",
    "SlotLease",
    "SlotWait",
    "StagedWeights",
    "StartTime",
    "Weights",
]
