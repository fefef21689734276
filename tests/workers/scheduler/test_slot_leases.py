"""Which replica gets which slot when many claim slots at once."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.db.models import Q

from catalogue.models import Model, ModelRevision
from tenants.audit import SYSTEM
from tests.workers.conftest import Fleet, add_node
from workers.agent.store.replica_rows import NodeRows
from workers.devices.provider import Device
from workers.errors import Refused, Superseded
from workers.fleet import deployments, operations
from workers.fleet.status import inventory
from workers.models import Deployment, Level, Node, Placeholder, Pool, Replica, Slot, SlotLease
from workers.scheduler import reconciler
from workers.scheduler.slots import slot_leases

NODES, SLOTS_PER_NODE = 4, 4
CLAIMERS, RACES = 40, 10
OPEN = Q(released_at=None)


def place(
    node: Node,
    *,
    level: Level = Level.H2,
    state: str = "warm",
    engine: str = "simulated",
    by: Deployment | None = None,
    slots: int = 1,
) -> Placeholder:
    """Put a placeholder on free slots of the node."""
    row = Placeholder.objects.create(
        node=node, deployment=by, engine=engine, target_level=level, level=level, state=state, slot_count=slots
    )
    fence = slot_leases.lease_for_placeholder(row.id, node.id, slots)
    assert fence is not None
    row.fence = fence
    row.save(update_fields=["fence"])
    return row


def deploy(fleet: Fleet, name: str, slots: int = 1) -> Deployment:
    deployment = fleet.deploy(1, name=name)
    Deployment.objects.filter(id=deployment.id).update(slots_per_replica=slots)
    deployment.refresh_from_db()
    return deployment


def reserve(deployment: Deployment, node: Node, promote: UUID | None = None) -> Replica:
    replica = reconciler.reserve(deployment, node.id, promote=promote)
    assert replica is not None
    return replica


def states(*rows: Placeholder) -> list[str]:
    found = {row.id: row.state for row in Placeholder.objects.all()}
    return [found[row.id] for row in rows]


def holders(node: Node) -> list[str]:
    """Return the holder of each slot of the node, in the order of the slots."""
    kinds = dict(SlotLease.objects.filter(OPEN).values_list("slot_id", "kind"))
    return [kinds.get(slot.id, "free") for slot in Slot.objects.filter(node=node).order_by("index")]


@contextmanager
def at_once(works: list[Callable[[], None]]) -> Iterator[list[BaseException]]:
    """Run the functions in threads with connections of their own; the block begins when all have ended."""
    failures: list[BaseException] = []
    ready = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
            ready.wait(timeout=60)
            work()
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield failures


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.django_db(transaction=True)
def test_forty_claimers_never_book_a_slot_twice(fleet: Fleet) -> None:
    nodes = [fleet.node, *(add_node(fleet.pool, f"n{number}", slots=SLOTS_PER_NODE) for number in range(2, NODES + 1))]
    gangs = {size: deploy(fleet, f"gang-{size}", size) for size in range(1, 5)}
    for race in range(RACES):
        _stock(nodes, race)
        dice = random.Random(race)
        asks = [(gangs[dice.randint(1, 4)], dice.choice(nodes)) for _ in range(CLAIMERS)]
        won: list[tuple[Deployment, Replica]] = []
        lost: list[tuple[Deployment, Node]] = []
        with at_once([_claimer(deployment, node, won, lost) for deployment, node in asks]) as failures:
            assert failures == []
        assert len(won) + len(lost) == CLAIMERS
        _check_books(won, lost)
        _clear()


def _stock(nodes: list[Node], race: int) -> None:
    """Leave one slot of each node free, and put an H0, a warming and a warm placeholder on the others; or nothing."""
    for node in nodes if race % 5 else []:
        place(node, level=Level.H0)
        place(node, state="warming")
        place(node)


def _claimer(
    deployment: Deployment, node: Node, won: list[tuple[Deployment, Replica]], lost: list[tuple[Deployment, Node]]
) -> Callable[[], None]:
    def claim() -> None:
        replica = reconciler.reserve(deployment, node.id)
        if replica is None:
            lost.append((deployment, node))
        else:
            won.append((deployment, replica))

    return claim


def _check_books(won: list[tuple[Deployment, Replica]], lost: list[tuple[Deployment, Node]]) -> None:
    held = list(SlotLease.objects.filter(OPEN, kind="replica").select_related("slot"))
    assert len({lease.slot_id for lease in held}) == len(held) == sum(d.slots_per_replica for d, _ in won)
    for deployment, replica in won:
        own = [lease for lease in held if lease.replica_id == replica.id]
        assert len(own) == deployment.slots_per_replica
        assert {(lease.slot.node_id, lease.fence) for lease in own} == {(replica.node_id, replica.fence)}
    assert len({replica.fence for _, replica in won}) == len(won)
    taken = Counter(lease.slot.node_id for lease in held)
    for deployment, node in lost:
        assert SLOTS_PER_NODE - taken[node.id] < deployment.slots_per_replica
    keeps = set(SlotLease.objects.filter(OPEN, kind="placeholder").values_list("placeholder_id", flat=True))
    for row in Placeholder.objects.all():
        assert (row.state in {"warm", "warming"}) == (row.id in keeps)
    promoted = set(Placeholder.objects.filter(state="promoted").values_list("id", flat=True))
    assert promoted == {replica.placeholder_id for _, replica in won if replica.placeholder_id is not None}


def _clear() -> None:
    for replica in Replica.objects.filter(leases__released_at=None, leases__isnull=False).distinct():
        assert slot_leases.release(replica_id=replica.id) > 0
    for row in Placeholder.objects.filter(state__in=("warm", "warming")):
        assert slot_leases.release(placeholder_id=row.id) == 1
    assert not SlotLease.objects.filter(OPEN).exists()
    Replica.objects.update(placeholder=None)
    SlotLease.objects.filter(kind="placeholder").delete()
    Placeholder.objects.all().delete()


@pytest.mark.timeout(300)
@pytest.mark.django_db(transaction=True)
def test_claims_evictions_and_agents_never_wait_for_each_other_for_ever(fleet: Fleet) -> None:
    other = add_node(fleet.pool, "n2")
    chat = deploy(fleet, "chat")
    for _ in range(4):
        rows = [place(node, level=level) for node in (fleet.node, other) for level in (Level.H0, Level.H2) * 2]
        ids = [row.id for row in rows]
        claims: list[Callable[[], None]] = [
            _claimer(chat, node, [], []) for node in (fleet.node, other) for _ in range(4)
        ]
        works = [*claims, *(_evicter(ids) for _ in range(3)), *(_loser(row) for row in rows)]
        with at_once(works) as failures:
            assert failures == []
        for row in Placeholder.objects.all():
            assert not row.leases.filter(OPEN).exists()
            assert (row.state == "promoted") == Replica.objects.filter(placeholder=row).exists()
        _clear()


def _evicter(ids: list[UUID]) -> Callable[[], None]:
    def evict() -> None:
        with transaction.atomic():
            slot_leases.evict(ids, "an operator asks for it")

    return evict


def _loser(row: Placeholder) -> Callable[[], None]:
    """Change the placeholder as an agent does when its process has ended."""

    def lose() -> None:
        with transaction.atomic():
            if Placeholder.objects.filter(id=row.id, fence=row.fence, state="warm").update(state="lost"):
                slot_leases.release(placeholder_id=row.id)

    return lose


@pytest.mark.timeout(300)
@pytest.mark.django_db(transaction=True)
def test_claims_and_an_agent_that_looks_at_its_devices_take_slots_in_one_order(fleet: Fleet) -> None:
    wide = deploy(fleet, "wide", 4)
    agent = NodeRows.take(fleet.node.name)
    slots = Slot.objects.filter(node=fleet.node).order_by("-index")
    devices = [Device(uuid=slot.device_uuid, index=slot.index, memory_bytes=None) for slot in slots]
    for _ in range(5):
        works = [*(_claimer(wide, fleet.node, [], []) for _ in range(4)), *(_looker(agent, devices) for _ in range(4))]
        with at_once(works) as failures:
            assert failures == []
        _clear()


def _looker(agent: NodeRows, devices: list[Device]) -> Callable[[], None]:
    return lambda: agent.register(devices)


@pytest.mark.django_db
def test_a_warm_zygote_is_promoted_its_own_deployments_first(fleet: Fleet) -> None:
    chat, other = deploy(fleet, "chat"), deploy(fleet, "other")
    foreign, own = place(fleet.node, by=other), place(fleet.node, by=chat)
    first, second, third = (reserve(chat, fleet.node) for _ in range(3))
    assert (first.placeholder_id, first.start_level) == (own.id, "h2")
    assert (second.placeholder_id, second.start_level) == (foreign.id, "h2")
    assert (third.placeholder_id, third.start_level) == (None, "cold")
    assert states(own, foreign) == ["promoted", "promoted"]
    assert holders(fleet.node) == ["replica", "replica", "replica", "free"]


@pytest.mark.django_db
def test_only_a_warm_zygote_of_the_same_engine_is_promoted(fleet: Fleet) -> None:
    rows = (
        place(fleet.node, engine="vllm"),
        place(fleet.node, state="warming"),
        place(fleet.node, level=Level.H0),
    )
    replica = reserve(deploy(fleet, "chat"), fleet.node)
    assert replica.placeholder_id is None
    assert states(*rows) == ["warm", "warming", "warm"]
    assert holders(fleet.node) == ["placeholder", "placeholder", "placeholder", "replica"]


@pytest.mark.django_db
def test_a_zygote_for_a_model_in_a_folder_is_not_spent_on_one_that_needs_the_hub(fleet: Fleet) -> None:
    ModelRevision.objects.filter(id=fleet.revision.id).update(engine="vllm", source="/models/tiny")
    fleet.revision.refresh_from_db()
    folder = deploy(fleet, "folder")
    model = Model.objects.create(name="org/model", owner=fleet.revision.model.owner)
    revision = ModelRevision.objects.create(
        model=model, source="org/model", digest="2" * 64, engine="vllm", context_length_tokens=64
    )
    hub = deployments.create(SYSTEM, name="hub", revision=revision, pools=[fleet.pool], replicas=1)
    warm = place(fleet.node, engine="vllm", by=folder)
    assert [each.deployment for each in inventory.read().placeholders[0].estimates] == ["folder"]
    with pytest.raises(Refused) as refused:
        operations.promote(SYSTEM, str(warm.id), "hub")
    assert refused.value.why == (
        "it has imported its engine for a model without access to the hub, and hub is a model with access to the hub"
    )
    assert (reserve(hub, fleet.node).placeholder_id, states(warm)) == (None, ["warm"])
    deployments.redeploy(SYSTEM, "folder", revision=revision, pools=[fleet.pool])
    assert states(warm) == ["evicting"]


@pytest.mark.django_db
def test_free_slots_go_first_then_the_coldest_placeholder_makes_room(fleet: Fleet) -> None:
    warm = place(fleet.node, engine="vllm")
    warming = place(fleet.node, engine="vllm", state="warming")
    bare = place(fleet.node, level=Level.H0)
    chat = deploy(fleet, "chat")
    seen = []
    for _ in range(4):
        reserve(chat, fleet.node)
        seen.append(states(bare, warming, warm))
    assert seen == [
        ["warm", "warming", "warm"],
        ["evicting", "warming", "warm"],
        ["evicting", "evicting", "warm"],
        ["evicting", "evicting", "evicting"],
    ]
    assert reconciler.reserve(chat, fleet.node.id) is None
    assert Placeholder.objects.get(id=bare.id).reason.startswith("its slot is needed by chat/")


@pytest.mark.django_db
def test_a_gang_takes_the_promoted_slot_and_evicts_no_more_than_it_needs(fleet: Fleet) -> None:
    rows = [place(fleet.node) for _ in range(4)]
    replica = reserve(deploy(fleet, "wide", 2), fleet.node)
    assert replica.placeholder_id == rows[0].id
    assert sorted(states(*rows)) == ["evicting", "promoted", "warm", "warm"]
    assert SlotLease.objects.filter(OPEN, replica=replica).count() == 2


@pytest.mark.django_db
def test_a_gang_that_does_not_fit_takes_nothing_and_evicts_nobody(fleet: Fleet) -> None:
    reserve(deploy(fleet, "chat"), fleet.node)
    row = place(fleet.node)
    assert reconciler.reserve(deploy(fleet, "wide", 4), fleet.node.id) is None
    assert states(row) == ["warm"]
    assert Replica.objects.count() == 1
    assert holders(fleet.node) == ["replica", "placeholder", "free", "free"]


@pytest.mark.django_db
def test_promotion_by_id_insists_on_that_placeholder(fleet: Fleet) -> None:
    chat = deploy(fleet, "chat")
    better, meant, bare = place(fleet.node, by=chat), place(fleet.node), place(fleet.node, level=Level.H0)
    assert reserve(chat, fleet.node, meant.id).placeholder_id == meant.id
    assert reconciler.reserve(chat, fleet.node.id, promote=meant.id) is None
    assert reconciler.reserve(chat, fleet.node.id, promote=bare.id) is None
    assert reconciler.reserve(chat, add_node(fleet.pool, "n2").id, promote=better.id) is None
    assert states(better, meant, bare) == ["warm", "promoted", "warm"]


@pytest.mark.django_db
def test_a_quarantined_or_missing_slot_is_given_to_nobody(fleet: Fleet) -> None:
    Slot.objects.filter(node=fleet.node, index__in=(0, 1)).update(health=Slot.Health.QUARANTINED)
    Slot.objects.filter(node=fleet.node, index=2).update(health=Slot.Health.GONE)
    place(fleet.node)
    assert holders(fleet.node) == ["free", "free", "free", "placeholder"]
    assert reconciler.reserve(deploy(fleet, "wide", 2), fleet.node.id) is None


@pytest.mark.django_db
def test_releasing_ends_the_leases_of_one_holder_once(fleet: Fleet) -> None:
    wide, row = reserve(deploy(fleet, "wide", 2), fleet.node), place(fleet.node)
    assert [slot_leases.release(replica_id=wide.id) for _ in range(2)] == [2, 0]
    assert holders(fleet.node) == ["free", "free", "placeholder", "free"]
    assert slot_leases.release(placeholder_id=row.id) == 1
    assert holders(fleet.node) == ["free"] * 4


@pytest.mark.django_db
def test_an_eviction_leaves_alone_what_was_promoted_meanwhile(fleet: Fleet) -> None:
    promoted, kept = place(fleet.node), place(fleet.node)
    reserve(deploy(fleet, "chat"), fleet.node)
    ids = [promoted.id, kept.id]
    assert [slot_leases.evict(ids, "an operator asks for it") for _ in range(2)] == [1, 0]
    assert states(promoted, kept) == ["promoted", "evicting"]
    assert holders(fleet.node) == ["replica", "free", "free", "free"]


@pytest.mark.django_db
def test_an_agent_with_an_old_fence_or_an_old_epoch_changes_nothing(fleet: Fleet) -> None:
    replica = reserve(deploy(fleet, "chat"), fleet.node)
    agent = NodeRows.take(fleet.node.name)
    (wanted,) = agent.replicas()
    Replica.objects.filter(id=replica.id).update(fence=slot_leases.next_fence())
    assert not agent.move(wanted, "stopped", "it says so")
    NodeRows.take(fleet.node.name)
    with pytest.raises(Superseded):
        agent.move(wanted, "stopped", "it says so")
    assert list(Replica.objects.values_list("state", flat=True)) == ["reserved"]
    assert holders(fleet.node) == ["replica", "free", "free", "free"]


@pytest.mark.django_db
def test_a_gang_on_gpus_becomes_of_a_placeholder_with_its_slots(fleet: Fleet) -> None:
    Pool.objects.update(kind="gpu")
    single, gang = place(fleet.node), place(fleet.node, slots=2)
    slots = set(gang.leases.filter(OPEN).values_list("slot_id", flat=True))
    replica = reserve(deploy(fleet, "big", 2), fleet.node)
    assert (replica.placeholder_id, replica.start_level) == (gang.id, "h2")
    assert set(replica.leases.filter(OPEN).values_list("slot_id", flat=True)) == slots
    assert not gang.leases.filter(OPEN).exists()
    assert states(single, gang) == ["warm", "promoted"]


@pytest.mark.django_db
def test_a_replica_that_takes_one_slot_of_a_placeholder_evicts_it_whole(fleet: Fleet) -> None:
    Pool.objects.update(kind="gpu")
    gang = place(fleet.node, slots=SLOTS_PER_NODE)
    replica = reserve(deploy(fleet, "small"), fleet.node)
    assert (replica.placeholder_id, states(gang)) == (None, ["evicting"])
    assert holders(fleet.node).count("free") == SLOTS_PER_NODE - 1


@pytest.mark.django_db
def test_no_zygote_of_other_gpus_is_promoted(fleet: Fleet) -> None:
    Pool.objects.update(kind="gpu")
    place(fleet.node)
    assert reserve(deploy(fleet, "big", 2), fleet.node).placeholder_id is None
    with pytest.raises(Refused, match="sees one GPU, and a replica of big takes 2"):
        operations.promote(SYSTEM, str(place(fleet.node).id), "big")
