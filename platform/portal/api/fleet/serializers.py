"""Request and response bodies of ``/api/v1/fleet``."""

from __future__ import annotations

from typing import Any

import msgspec
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from catalogue import routing_policy
from catalogue.routing_policy import MAX_WEIGHT, POLICIES, TERMS, BadPolicy, RoutingPolicy
from portal.api.fleet.node_serializers import CertificateSerializer, GpuReportSerializer
from portal.api.fleet.target_serializers import TargetStatusSerializer
from workers.devices.provider import Reading
from workers.fleet import pools
from workers.fleet.deployments import MAX_REPLICAS
from workers.fleet.operations import LEVELS, MAX_PLACEHOLDERS, Effect
from workers.fleet.pools import dollars
from workers.fleet.scrape_targets import ScrapeTarget
from workers.fleet.status import history, inventory, placeholders, slots
from workers.fleet.status.pool_status import NodeStatus, PoolStatus, SlotGroup
from workers.fleet.status.replica_status import ReplicaStatus
from workers.fleet.status.rollout_status import RolloutStatus
from workers.fleet.status.weights import WeightsStatus
from workers.models import Level, Slot
from workers.scheduler.scaling import scaling_signals
from workers.scheduler.scaling.scaling_signals import Objectives
from workers.serving import answer_patterns, pool_requirements
from workers.serving.gateway_load import DeploymentLoad
from workers.serving.pool_requirements import MOST_LABELS, PoolRequirements
from workers.serving.rollout_policy import MOST_AT_ONCE, MOST_CHARACTERS, MOST_SECONDS
from workers.serving.start_times import Parts, StartSummary


class EventSerializer(serializers.Serializer[history.Transition]):
    """One transition of a replica."""

    at = serializers.DateTimeField(read_only=True)
    from_state = serializers.CharField(read_only=True)
    to_state = serializers.CharField(read_only=True)
    reason = serializers.CharField(read_only=True)


class StartPartsSerializer(serializers.Serializer[Parts]):
    """Seconds of the parts of a start, or their medians; null where unknown. The rest of a start is in none of them."""

    fetch_seconds = serializers.FloatField(
        read_only=True, allow_null=True, help_text="Waiting for the model's files; of the first start on a node alone."
    )
    load_seconds = serializers.FloatField(read_only=True, allow_null=True, help_text="Loading the weights.")
    compile_seconds = serializers.FloatField(read_only=True, allow_null=True)
    warm_up_seconds = serializers.FloatField(
        read_only=True, allow_null=True, help_text="Profiling, allocating the KV cache, capturing graphs."
    )


class ReplicaSerializer(serializers.Serializer[ReplicaStatus]):
    """One engine, with its last events, newest first."""

    id = serializers.UUIDField(read_only=True)
    deployment = serializers.CharField(read_only=True)
    model = serializers.CharField(read_only=True)
    node = serializers.CharField(read_only=True, allow_null=True)
    state = serializers.CharField(read_only=True)
    since = serializers.DateTimeField(read_only=True)
    leaving = serializers.BooleanField(read_only=True, help_text="It stops once its replacement is ready.")
    canary = serializers.CharField(
        read_only=True,
        help_text="Of a replica that a rollout made: pending, running, passed or failed. It gets requests if passed.",
    )
    running_requests = serializers.IntegerField(read_only=True)
    waiting_requests = serializers.IntegerField(read_only=True)
    kv_usage = serializers.FloatField(read_only=True, help_text="0 to 1.")
    ttft_seconds = serializers.FloatField(
        read_only=True,
        allow_null=True,
        help_text="Mean time to the first token in the last minute, as its engine says; null without a request.",
    )
    tpot_seconds = serializers.FloatField(
        read_only=True, allow_null=True, help_text="Mean time between two tokens in the last minute."
    )
    prefix_hit_share = serializers.FloatField(
        read_only=True,
        allow_null=True,
        help_text="Share of its prompt tokens in the last minute that it had cached.",
    )
    cache_tokens = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Tokens that its KV cache holds."
    )
    host_cache_tokens = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Tokens that it keeps in host memory, if it keeps any there."
    )
    max_requests = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Requests that its engine runs at once; with more it is full."
    )
    context_tokens = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Its engine's longest prompt and completion together, tokens."
    )
    start_level = serializers.CharField(
        read_only=True, help_text="Level it was started from: cold, h0, h2, or empty until that is known."
    )
    start_note = serializers.CharField(read_only=True, help_text="Why it was not started from a warmer level.")
    startup_seconds = serializers.FloatField(
        read_only=True, allow_null=True, help_text="From spawn or promotion to the first canary token."
    )
    start_parts = StartPartsSerializer(read_only=True, help_text="Of its last start.")
    placeholder = serializers.UUIDField(
        read_only=True, allow_null=True, help_text="The placeholder it was promoted from."
    )
    generation = serializers.IntegerField(read_only=True, help_text="Number of engine processes so far.")
    attempts = serializers.IntegerField(read_only=True)
    next_attempt_at = serializers.DateTimeField(read_only=True, allow_null=True)
    drain_deadline = serializers.DateTimeField(
        read_only=True, allow_null=True, help_text="Requests that are still running then are aborted."
    )
    last_error = serializers.CharField(read_only=True)
    events = EventSerializer(source="transitions", many=True, read_only=True)


class StartSummarySerializer(serializers.Serializer[StartSummary]):
    """The newest starts from one level, in seconds from the decision to the first canary token."""

    level = serializers.CharField(read_only=True)
    median_seconds = serializers.FloatField(read_only=True)
    p95_seconds = serializers.FloatField(read_only=True)
    count = serializers.IntegerField(read_only=True)
    parts = StartPartsSerializer(read_only=True, help_text="Medians.")


class LoadSerializer(serializers.Serializer[DeploymentLoad]):
    """A deployment's requests at all gateways now. ``held_*`` counts those queued for a replica."""

    in_flight_requests = serializers.IntegerField(read_only=True)
    in_flight_tokens = serializers.IntegerField(read_only=True)
    held_requests = serializers.IntegerField(source="queued_requests", read_only=True)
    held_tokens = serializers.IntegerField(source="queued_tokens", read_only=True)


class RoutingSerializer(serializers.Serializer[RoutingPolicy]):
    """How requests choose a replica. Terms without a weight have 1; only ``expected-seconds`` has weights."""

    policy = serializers.ChoiceField(choices=POLICIES, source="name")
    weights = serializers.DictField(
        child=serializers.FloatField(),
        required=False,
        help_text=f"0 to {MAX_WEIGHT:g} for each of {', '.join(TERMS)}.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the policy. Raises ValidationError."""
        try:
            return {"policy": routing_policy.make(attrs["name"], attrs.get("weights"))}
        except BadPolicy as error:
            raise serializers.ValidationError({error.field: f"{error}."[:1].upper() + f"{error}."[1:]}) from None

    def to_representation(self, instance: RoutingPolicy) -> dict[str, Any]:
        """Return every weight, also those that are 1."""
        return {"policy": instance.name, "weights": msgspec.structs.asdict(instance.weights)}


class WeightsSerializer(serializers.Serializer[WeightsStatus]):
    """A model's files on one node, which fetches them from the hub before a replica gets slots there."""

    node = serializers.CharField(read_only=True)
    state = serializers.CharField(read_only=True, help_text="wanted, fetching, ready or failed.")
    bytes_done = serializers.IntegerField(read_only=True)
    bytes_total = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Null until the hub has said how much it is."
    )
    attempts = serializers.IntegerField(read_only=True, help_text="Attempts that failed since the last success.")
    error = serializers.CharField(read_only=True, help_text="Why the last attempt failed, and what to do.")
    retry_seconds = serializers.FloatField(
        read_only=True, allow_null=True, help_text="Until the next attempt; null if none is waited for."
    )
    words = serializers.CharField(read_only=True, help_text='As in "fetching 41 % of 16.1 GB on node n2".')


class RolloutSerializer(serializers.Serializer[RolloutStatus]):
    """A change of what a deployment serves, replica by replica."""

    id = serializers.UUIDField(read_only=True)
    deployment = serializers.CharField(read_only=True)
    state = serializers.CharField(read_only=True, help_text="running, paused, undoing, done, undone or replaced.")
    revision = serializers.CharField(read_only=True, help_text="The beginning of the digest of the new revision.")
    earlier_revision = serializers.CharField(read_only=True, help_text="The same of the one before.")
    engine_version = serializers.CharField(read_only=True, help_text="As in `engines` of a node, or empty.")
    earlier_engine_version = serializers.CharField(read_only=True)
    new = serializers.IntegerField(read_only=True, help_text="Its replicas; 0 once it has ended.")
    new_ready = serializers.IntegerField(read_only=True, help_text="Those of them that may get requests.")
    old = serializers.IntegerField(read_only=True, help_text="Replicas that it replaces; 0 once it has ended.")
    old_ready = serializers.IntegerField(read_only=True)
    canaries = serializers.DictField(
        child=serializers.CharField(), read_only=True, help_text="What the canary found, by the end of a replica's id."
    )
    requests = serializers.IntegerField(source="traffic.requests", read_only=True, help_text="To new replicas.")
    failures = serializers.IntegerField(source="traffic.failures", read_only=True)
    slow = serializers.IntegerField(
        source="traffic.slow", read_only=True, help_text="Streams that began later than max_ttft_seconds."
    )
    reason = serializers.CharField(read_only=True, help_text="Why it is in this state.")
    waits_for = serializers.CharField(read_only=True, help_text="What its next step waits for; empty if nothing.")
    started_by = serializers.CharField(read_only=True)
    started_at = serializers.DateTimeField(read_only=True)
    finished_at = serializers.DateTimeField(read_only=True, allow_null=True)
    words = serializers.CharField(read_only=True, help_text="All of it in a sentence.")


class RequirementsSerializer(serializers.Serializer[PoolRequirements]):
    """What pools must have: one of the types of GPU, if there are any, and every label."""

    gpu_types = serializers.ListField(child=serializers.CharField(max_length=63), max_length=MOST_LABELS, default=list)
    labels = serializers.DictField(child=serializers.CharField(max_length=63), default=dict)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the requirements. Raises BadValue."""
        types = tuple(pool_requirements.parse_gpu_type(each) for each in attrs["gpu_types"])
        labels = pool_requirements.check_labels(attrs["labels"])
        return {"requirements": PoolRequirements(gpu_types=types, labels=labels)}


class ObjectivesSerializer(serializers.Serializer[Objectives]):
    """What scaling follows beside tokens in flight. What is left out, or null, is not followed."""

    ttft_seconds = serializers.FloatField(
        required=False, allow_null=True, help_text="Mean time to the first token, while requests queue in engines."
    )
    kv_usage = serializers.FloatField(
        required=False, allow_null=True, help_text="Share of the KV caches in use, on average; up to 1."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the objectives. Raises BadValue."""
        return {"objectives": scaling_signals.make(dict(attrs))}


class DeploymentSerializer(serializers.Serializer[inventory.DeploymentStatus]):
    """What should run, and what does."""

    name = serializers.CharField(read_only=True)
    model = serializers.CharField(read_only=True)
    engine = serializers.CharField(read_only=True)
    engine_version = serializers.CharField(read_only=True, help_text="Empty: the first one that each node has.")
    without_engine = serializers.CharField(
        read_only=True, help_text="Which nodes of its pools lack the version of its engine, and what to do; or empty."
    )
    desired_replicas = serializers.IntegerField(source="desired", read_only=True)
    min_replicas = serializers.IntegerField(source="minimum", read_only=True)
    max_replicas = serializers.IntegerField(source="maximum", read_only=True)
    ready_replicas = serializers.IntegerField(source="ready", read_only=True)
    replicas_without_slot = serializers.IntegerField(
        source="without_slot",
        read_only=True,
        help_text="Desired replicas that have no slot, and find none on the nodes of its pools now.",
    )
    slots_per_replica = serializers.IntegerField(read_only=True)
    target_tokens_per_replica = serializers.IntegerField(read_only=True, help_text="In its first pool.")
    learns_target = serializers.BooleanField(read_only=True, help_text="False: somebody has set it.")
    targets = TargetStatusSerializer(many=True, read_only=True, help_text="What scaling follows, by pool.")
    scale_up_delay_seconds = serializers.FloatField(read_only=True)
    scale_down_delay_seconds = serializers.FloatField(read_only=True)
    routing = RoutingSerializer(read_only=True)
    pools = serializers.ListField(child=serializers.CharField(), read_only=True, help_text="In filling order.")
    objectives = ObjectivesSerializer(read_only=True)
    requires = RequirementsSerializer(read_only=True)
    left_out = serializers.ListField(
        child=serializers.CharField(),
        read_only=True,
        help_text="Its pools that lack that, and what they lack.",
    )
    hour_usd = serializers.SerializerMethodField(
        help_text="What the slots of its replicas cost in an hour, dollars as text; null if a pool of them has no cost."
    )
    load = LoadSerializer(read_only=True)
    starts = StartSummarySerializer(many=True, read_only=True, help_text="Coldest first.")
    weights = WeightsSerializer(
        many=True, read_only=True, help_text="By node; empty for a model that no node has to fetch."
    )
    rollout = RolloutSerializer(
        read_only=True, allow_null=True, help_text="The open one, or the last one if it has ended within an hour."
    )
    replicas = ReplicaSerializer(many=True, read_only=True)

    def get_hour_usd(self, deployment: inventory.DeploymentStatus) -> str | None:
        """Return what its replicas' slots cost."""
        return dollars(deployment.hour_pico) or None


class PlaceholderSerializer(serializers.Serializer[placeholders.PlaceholderStatus]):
    """Warm capacity that gives way to a replica, or becomes one."""

    id = serializers.UUIDField(read_only=True)
    node = serializers.CharField(read_only=True)
    deployment = serializers.CharField(read_only=True, allow_null=True, help_text="The deployment it was warmed for.")
    engine = serializers.CharField(read_only=True)
    target_level = serializers.CharField(read_only=True)
    level = serializers.CharField(read_only=True, help_text="Its level now: h0 or h2.")
    state = serializers.CharField(read_only=True)
    since = serializers.DateTimeField(read_only=True)
    reason = serializers.CharField(read_only=True)
    memory_bytes = serializers.IntegerField(read_only=True, allow_null=True)
    warm_seconds = serializers.FloatField(read_only=True, allow_null=True, help_text="From spawn to warm.")
    expected_seconds = serializers.FloatField(
        read_only=True, allow_null=True, help_text="Median measured time until a replica started from it serves."
    )


class ReadingSerializer(serializers.Serializer[Reading]):
    """What a device did when its agent last read it. Null: the device does not say."""

    used_bytes = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Of a CPU share: the memory of its engine's processes."
    )
    utilisation_percent = serializers.IntegerField(
        read_only=True,
        allow_null=True,
        help_text="Share of the last second in which it computed. Of a CPU share: its engine's part of all CPUs.",
    )
    temperature_celsius = serializers.IntegerField(read_only=True, allow_null=True)
    power_watts = serializers.FloatField(read_only=True, allow_null=True)
    xid_errors = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Xid errors that the driver reported since its agent started."
    )
    last_xid = serializers.IntegerField(read_only=True, allow_null=True, help_text="The number of the last of them.")
    corrected_ecc_errors = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Since the driver started."
    )
    uncorrected_ecc_errors = serializers.IntegerField(read_only=True, allow_null=True)
    remapped_rows = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Rows of its memory replaced by spare ones since it was made."
    )


class SlotStatusSerializer(serializers.Serializer[slots.SlotStatus]):
    """A place for one engine rank."""

    id = serializers.UUIDField(read_only=True)
    index = serializers.IntegerField(read_only=True)
    device_uuid = serializers.CharField(read_only=True)
    memory_bytes = serializers.IntegerField(read_only=True, allow_null=True)
    health = serializers.CharField(read_only=True, help_text="ok, quarantined or gone.")
    fault = serializers.CharField(read_only=True)
    reading = ReadingSerializer(read_only=True, allow_null=True, help_text="Of the last minute, or null.")
    read_at = serializers.DateTimeField(read_only=True, allow_null=True)


class PlaceSerializer(serializers.Serializer[SlotGroup]):
    """Slots of a node and what holds them. A replica without a slot has an empty list of slots."""

    kind = serializers.CharField(read_only=True, help_text="replica, placeholder, free, quarantined or gone.")
    slots = SlotStatusSerializer(many=True, read_only=True)
    replica = serializers.UUIDField(source="replica.id", read_only=True, default=None, allow_null=True)
    placeholder = PlaceholderSerializer(read_only=True, allow_null=True)


class NodeSerializer(serializers.Serializer[NodeStatus]):
    """A machine with an agent."""

    id = serializers.UUIDField(read_only=True)
    name = serializers.CharField(read_only=True)
    address = serializers.CharField(read_only=True)
    alive = serializers.BooleanField(read_only=True, help_text="Whether its agent renews its lease.")
    cordoned = serializers.BooleanField(read_only=True)
    slots = serializers.IntegerField(source="slot_count", read_only=True)
    free_slots = serializers.IntegerField(source="free_count", read_only=True)
    engines = serializers.ListField(
        child=serializers.CharField(),
        read_only=True,
        help_text="Versions of engines that it has, as `vllm 0.32.0-0123456789ab`; the first of an engine runs "
        "revisions that name none.",
    )
    gpu_check = GpuReportSerializer(
        read_only=True, allow_null=True, help_text="Null until `hearth gpu-check` has run there."
    )
    promotion_obstacles = serializers.ListField(
        child=serializers.CharField(),
        read_only=True,
        help_text="Why placeholders that its pool wants are not kept there.",
    )
    certificate = CertificateSerializer(
        read_only=True, allow_null=True, help_text="Null for a node whose engines speak plain HTTP on loopback."
    )
    places = PlaceSerializer(source="slot_groups", many=True, read_only=True, help_text="In the order of their slots.")


class PoolSerializer(serializers.Serializer[PoolStatus]):
    """Nodes of one kind; the pool with the lowest priority is filled first."""

    name = serializers.CharField(read_only=True)
    kind = serializers.CharField(read_only=True)
    region = serializers.CharField(read_only=True)
    priority = serializers.IntegerField(read_only=True)
    placeholders_per_node = serializers.IntegerField(read_only=True)
    placeholder_level = serializers.CharField(read_only=True)
    placeholders_wanted = serializers.IntegerField(read_only=True)
    placeholders_warm = serializers.IntegerField(read_only=True)
    high_water = serializers.FloatField(
        read_only=True, help_text="Share of a deployment's capacity here above which its next pool is prepared."
    )
    low_water = serializers.FloatField(read_only=True, help_text="Share below which the next pool is released again.")
    staged_share = serializers.FloatField(
        read_only=True, help_text="Of a node's available memory, for files of models in its page cache."
    )
    gpu_type = serializers.CharField(read_only=True)
    labels = serializers.DictField(child=serializers.CharField(), read_only=True)
    slot_hour_usd = serializers.SerializerMethodField(
        help_text="What one slot costs in an hour, dollars as text; null if nobody has said."
    )
    hour_usd = serializers.SerializerMethodField(help_text="The same of all its slots, used or not.")
    nodes = NodeSerializer(many=True, read_only=True)

    def get_slot_hour_usd(self, pool: PoolStatus) -> str | None:
        """Return what one slot costs."""
        return dollars(pool.slot_hour_pico) or None

    def get_hour_usd(self, pool: PoolStatus) -> str | None:
        """Return what all slots cost."""
        return dollars(pool.hour_pico) or None


class DecisionSerializer(serializers.Serializer[history.Decision]):
    """One change of the desired replicas, with the facts it was decided from."""

    id = serializers.UUIDField(read_only=True)
    at = serializers.DateTimeField(read_only=True)
    deployment = serializers.CharField(read_only=True)
    pool = serializers.CharField(
        read_only=True, allow_null=True, help_text="Prepared, released, or where replicas are placed."
    )
    action = serializers.CharField(read_only=True, help_text="up, down, wake, prepare, release, failover or failback.")
    from_replicas = serializers.IntegerField(read_only=True)
    to_replicas = serializers.IntegerField(read_only=True)
    reason = serializers.CharField(read_only=True)
    inputs = serializers.JSONField(read_only=True)


class FleetSerializer(serializers.Serializer[inventory.Fleet]):
    """Everything, read at one moment."""

    deployments = DeploymentSerializer(many=True, read_only=True)
    pools = PoolSerializer(many=True, read_only=True)
    decisions = DecisionSerializer(many=True, read_only=True, help_text="The newest ones, newest first.")


class SlotSerializer(serializers.Serializer[Slot]):
    """A slot, what its device does, and the replica or placeholder that holds it."""

    id = serializers.UUIDField(read_only=True)
    node = serializers.CharField(source="node.name", read_only=True)
    index = serializers.IntegerField(read_only=True)
    device_uuid = serializers.CharField(read_only=True)
    memory_bytes = serializers.IntegerField(read_only=True, allow_null=True)
    health = serializers.CharField(read_only=True, help_text="ok, quarantined or gone.")
    fault = serializers.CharField(read_only=True)
    reading = serializers.SerializerMethodField(help_text="Of the last minute, or null.")
    replica = serializers.UUIDField(read_only=True, allow_null=True)
    placeholder = serializers.UUIDField(read_only=True, allow_null=True)

    @extend_schema_field(ReadingSerializer(allow_null=True))
    def get_reading(self, row: Slot) -> Any:
        """Return the reading, if it is of the last minute."""
        reading = slots.current_reading(row)
        return None if reading is None else ReadingSerializer(reading).data


class StartTimeSerializer(StartPartsSerializer):
    """How long one start took, and from which level."""

    id = serializers.UUIDField(read_only=True)
    at = serializers.DateTimeField(source="created_at", read_only=True)
    model = serializers.CharField(source="revision.model.name", read_only=True)
    revision = serializers.UUIDField(source="revision_id", read_only=True)
    replica = serializers.UUIDField(source="replica_id", read_only=True)
    pool = serializers.CharField(source="pool.name", read_only=True)
    level = serializers.ChoiceField(choices=Level.choices, read_only=True)
    seconds = serializers.FloatField(read_only=True, help_text="From the decision to the first canary token.")
    process_seconds = serializers.FloatField(read_only=True, help_text="The part from spawn or promotion on.")


class ScrapeTargetSerializer(serializers.Serializer[ScrapeTarget]):
    """One target of Prometheus' ``http_sd_configs``."""

    targets = serializers.SerializerMethodField(help_text="Host and port.")
    labels = serializers.DictField(
        child=serializers.CharField(),
        read_only=True,
        help_text="role, and node, pool, deployment, model and replica where there is one; of engines their path, too.",
    )

    def get_targets(self, target: ScrapeTarget) -> list[str]:
        """Return the address."""
        return [target.address]


class EffectSerializer(serializers.Serializer[Effect]):
    """The result of a verb. Sending it again changes nothing more."""

    target = serializers.CharField(read_only=True)
    changed = serializers.BooleanField(read_only=True, help_text="False if nothing had to change.")
    now = serializers.CharField(read_only=True, help_text="The state now, in words.")


class ScaleSerializer(serializers.Serializer[Any]):
    """``replicas`` alone, or ``min_replicas`` and ``max_replicas``, the bounds for scaling."""

    replicas = serializers.IntegerField(min_value=0, max_value=MAX_REPLICAS, required=False)
    min_replicas = serializers.IntegerField(min_value=0, max_value=MAX_REPLICAS, required=False)
    max_replicas = serializers.IntegerField(min_value=0, max_value=MAX_REPLICAS, required=False)

    def validate(self, attrs: dict[str, int]) -> dict[str, int]:
        """Return the two bounds. Raises ValidationError unless exactly one of the two forms is complete."""
        if set(attrs) == {"replicas"}:
            return {"min_replicas": attrs["replicas"], "max_replicas": attrs["replicas"]}
        if "replicas" in attrs:
            raise serializers.ValidationError({"replicas": "Use either replicas, or min_replicas and max_replicas."})
        if not attrs:
            raise serializers.ValidationError({"replicas": "Required, unless min_replicas and max_replicas are given."})
        for name in ("min_replicas", "max_replicas"):
            if name not in attrs:
                raise serializers.ValidationError({name: "Required together with the other bound."})
        if attrs["max_replicas"] < attrs["min_replicas"]:
            raise serializers.ValidationError({"max_replicas": f"Use {attrs['min_replicas']} or more."})
        return attrs


class PromoteSerializer(serializers.Serializer[Any]):
    """The deployment whose replica the placeholder becomes."""

    deployment = serializers.SlugField(max_length=63)


class CanarySerializer(serializers.Serializer[Any]):
    """A prompt that every new replica has to answer, and what its answer has to be."""

    prompt = serializers.CharField(max_length=MOST_CHARACTERS)
    contains = serializers.CharField(max_length=MOST_CHARACTERS, required=False, help_text="In upper or lower case.")
    equals = serializers.CharField(max_length=MOST_CHARACTERS, required=False, help_text="Without blanks around it.")
    matches = serializers.CharField(
        max_length=answer_patterns.MOST_CHARACTERS,
        required=False,
        trim_whitespace=False,
        help_text="A regular expression of RE2 that has to match somewhere in it.",
    )
    is_json = serializers.BooleanField(required=False, help_text="Whether it has to be a JSON document.")
    max_tokens = serializers.IntegerField(min_value=1, max_value=4096, required=False)


class RolloutPolicySerializer(serializers.Serializer[Any]):
    """How a rollout goes, and what undoes it. What is left out stays; null is the default."""

    max_surge = serializers.IntegerField(min_value=0, max_value=MOST_AT_ONCE, required=False, allow_null=True)
    max_unavailable = serializers.IntegerField(min_value=0, max_value=MOST_AT_ONCE, required=False, allow_null=True)
    min_ready_seconds = serializers.FloatField(min_value=0, max_value=MOST_SECONDS, required=False, allow_null=True)
    canaries = CanarySerializer(many=True, required=False, allow_null=True)
    max_ttft_seconds = serializers.FloatField(min_value=0, max_value=MOST_SECONDS, required=False, allow_null=True)
    max_tpot_seconds = serializers.FloatField(min_value=0, max_value=MOST_SECONDS, required=False, allow_null=True)
    max_error_share = serializers.FloatField(min_value=0, max_value=1, required=False, allow_null=True)
    max_failed_starts = serializers.IntegerField(min_value=0, max_value=1000, required=False, allow_null=True)


class PoolSettingsSerializer(serializers.Serializer[Any]):
    """What a pool is. What is left out stays; ``kind`` makes a pool that is not there."""

    kind = serializers.ChoiceField(choices=pools.KINDS, required=False, help_text="It cannot be changed.")
    region = serializers.CharField(max_length=pools.REGION_LENGTH, required=False)
    priority = serializers.IntegerField(min_value=0, max_value=pools.MAX_PRIORITY, required=False)
    high_water = serializers.FloatField(min_value=0, max_value=1, required=False)
    low_water = serializers.FloatField(min_value=0, max_value=1, required=False)
    staged_share = serializers.FloatField(
        min_value=0, max_value=pools.MAX_STAGED_SHARE, required=False, help_text="Of a node's available memory."
    )
    gpu_type = serializers.CharField(max_length=63, allow_blank=True, required=False)
    labels = serializers.DictField(child=serializers.CharField(max_length=63), required=False)
    slot_hour_usd = serializers.CharField(
        max_length=30, required=False, allow_null=True, help_text="Dollars as text, such as 2.50; null: unknown."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the settings. Raises BadValue."""
        found = dict(attrs)
        if found.get("gpu_type"):
            found["gpu_type"] = pool_requirements.parse_gpu_type(found["gpu_type"])
        if "labels" in found:
            found["labels"] = pool_requirements.check_labels(found["labels"])
        if "slot_hour_usd" in found:
            given = found.pop("slot_hour_usd")
            found["slot_hour_pico"] = None if given is None else pools.pico(given)
        return {"settings": found}


class WarmSerializer(serializers.Serializer[Any]):
    """The placeholders that each node of the pool keeps."""

    placeholders_per_node = serializers.IntegerField(min_value=0, max_value=MAX_PLACEHOLDERS)
    level = serializers.ChoiceField(
        choices=LEVELS, required=False, help_text="Unchanged if absent. h0 reserves the slot, h2 is a warm process."
    )
