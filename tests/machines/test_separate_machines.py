"""Two heads and a node that joined them, each a machine of its own: what they share, and what the loss of one costs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest

from tests.docker.pods import Network, unusable
from tests.journey.instance import wait_for
from tests.machines.machine import Machine, Servers, asking, new_folder, servers

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(unusable() != "", reason=unusable()),
]

SLOTS = 2
SIMULATED = ("--engine", "simulated")
NAMES = ("first", "second", "third")


@dataclass(slots=True)
class Cluster:
    """The three machines, by name, and what a client and an operator know."""

    network: Network
    servers: Servers
    machines: dict[str, Machine]
    up: dict[str, Any] = field(default_factory=dict)
    _token: str = ""

    @property
    def first(self) -> Machine:
        return self.machines["first"]

    @property
    def second(self) -> Machine:
        return self.machines["second"]

    @property
    def third(self) -> Machine:
        return self.machines["third"]

    @property
    def key(self) -> str:
        """A key of the demo tenant acme."""
        return next(str(tenant["api_key"]) for tenant in self.up["tenants"] if tenant["slug"] == "acme")

    def chat(self, machine: Machine, key: str) -> int:
        """Return the status with which a gateway answers something new."""
        body = {"model": "hearth-tiny", "messages": [{"role": "user", "content": str(uuid4())}], "max_tokens": 8}
        return self.network.fetch(f"{machine.gateway}/chat/completions", {"Authorization": f"Bearer {key}"}, body)[0]

    def operator(self, machine: Machine, path: str, body: object = None) -> Any:
        """Call the management API of a head as the operator."""
        if not self._token:
            admin = self.up["admin"]
            credentials = {"username": admin["username"], "password": admin["password"], "name": "machines"}
            status, _, text = self.network.fetch(f"{machine.management}/tokens", None, credentials)
            assert status == 201, text
            self._token = json.loads(text)["secret"]
        url = f"{machine.management}{path}"
        status, _, text = self.network.fetch(url, {"Authorization": f"Bearer {self._token}"}, body)
        assert 200 <= status < 300, (status, text)
        return json.loads(text) if text else None

    def serves(self, head: Machine) -> bool:
        """Return whether its gateway and its portal answer, with whatever."""
        return all(self.network.fetch(url)[0] for url in (f"{head.gateway}/models", f"{head.management}/fleet"))

    def replicas(self, head: Machine) -> dict[str, str]:
        """Return the node of each replica that is ready."""
        fleet = self.operator(head, "/fleet")
        rows = [row for deployment in fleet["deployments"] for row in deployment["replicas"]]
        return {row["id"]: row["node"] for row in rows if row["state"] == "ready"}

    def placed(self) -> dict[str, int]:
        """Return how many replicas of each node are ready."""
        return Counter(self.replicas(self.first).values())

    def is_full(self, head: Machine) -> bool:
        """Return whether every slot of every machine has a ready replica, and that one's engine runs."""
        found = self.replicas(head)
        running = {replica: name for name, machine in self.machines.items() for replica in machine.engines()}
        return Counter(found.values()) == dict.fromkeys(NAMES, SLOTS) and running == found

    def served_by(self, request_ids: list[str]) -> set[str]:
        """Return the replicas that finished these requests, by their usage."""
        with self.servers.connect() as connection:
            query = "SELECT DISTINCT replica_id::text FROM billing_usagerecord WHERE id = ANY(%s::uuid[])"
            return {str(row[0]) for row in connection.execute(query, [request_ids])}

    def is_counted(self, request_ids: list[str]) -> bool:
        """Return whether each of these requests has its usage, with the engine's own counts."""
        with self.servers.connect() as connection:
            query = "SELECT count(*) FROM billing_usagerecord WHERE id = ANY(%s::uuid[]) AND state = 'complete'"
            return connection.execute(query, [request_ids]).fetchone() == (len(request_ids),)

    def open_leases(self) -> dict[object, object]:
        """Return how many slots of each node are leased. The database allows one open lease of a slot."""
        query = """
            SELECT node.name, count(*) FROM workers_slotlease lease JOIN workers_slot slot ON slot.id = lease.slot_id
            JOIN workers_node node ON node.id = slot.node_id WHERE lease.released_at IS NULL GROUP BY 1
        """
        with self.servers.connect() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Start the servers, both heads, and a node that joins them."""
    with ExitStack() as stack:
        network = Network()
        stack.callback(network.close)
        found = Cluster(network, servers(network, stack), {})
        for number, name in enumerate(NAMES, 2):
            settings = {"HEARTH_SLOTS": str(SLOTS), "HEARTH_DEMO": "1"}
            found.machines[name] = Machine(network, number, name, new_folder(stack), settings)
            stack.callback(found.machines[name].switch_off)
            found.machines[name].switch_on()
        first, second, third = found.machines.values()
        first.settings |= found.servers.of_heads | found.servers.of_owner
        second.settings |= found.servers.of_heads
        first.run("up", "--detach", *SIMULATED, "--replicas", "1", "--placeholders", "0")
        found.up = json.loads((first.folder / "up.json").read_text())
        second.run("secrets", "import", "-", given=first.run("secrets", "export", "--all", "-"))
        second.start("node", "--head", *SIMULATED)
        *_, token = first.run("node", "token", "--pool", "local-cpu").split()
        third.run("node", "join", token)
        third.start("node", *SIMULATED)
        found.operator(first, "/fleet/deployments/hearth-tiny/scale", size(SLOTS * len(NAMES)))
        wait_for(lambda: found.is_full(first), "a replica in every slot", 180)
        yield found


def test_either_gateway_reaches_the_engines_of_every_machine_with_its_certificate_alone(cluster: Cluster) -> None:
    engines = {replica for machine in cluster.machines.values() for replica in machine.engines()}
    for head in (cluster.first, cluster.second):
        with asking(cluster.network, cluster.key, head.gateway) as client:
            wait_for(lambda: cluster.served_by(client.answered()) == engines, f"answers through {head.name}", 120)
            assert {each.status for each in client.outcomes()} == {200}, client.outcomes()
    for machine in cluster.machines.values():
        for engine in machine.engines().values():
            for scheme in ("http", "https"):
                url = f"{scheme}://{machine.address}:{engine.port}/v1/models"
                assert cluster.network.fetch(url, {"Authorization": f"Bearer {engine.key}"})[0] == 0


def test_a_key_that_one_head_revokes_is_refused_by_the_other(cluster: Cluster) -> None:
    made = cluster.operator(cluster.first, "/tenants/acme/keys", {"name": "short", "project": "default"})
    wait_for(lambda: cluster.chat(cluster.second, made["secret"]) == 200, "the key at the other head")
    cluster.operator(cluster.second, f"/tenants/acme/keys/{made['id']}/revoke", {})
    wait_for(lambda: cluster.chat(cluster.first, made["secret"]) == 401, "its refusal")


def test_a_lost_head_fails_no_request_of_the_other_and_its_own_answers_are_counted(cluster: Cluster) -> None:
    with asking(cluster.network, cluster.key, cluster.first.gateway, cluster.second.gateway) as client:
        client.wait_for_more()
        cluster.second.switch_off()
        wait_for(lambda: "second" not in cluster.replicas(cluster.first).values(), "the loss of its engines", 60)
        client.wait_for_more()
        client.stop()
        through_first = [each for each in client.outcomes() if each.gateway == cluster.first.gateway]
        assert [each for each in through_first if each.status != 200] == []
        cluster.second.switch_on()
        cluster.second.start("node", "--head", *SIMULATED)
        wait_for(lambda: cluster.serves(cluster.second), "its gateway and its portal", 60)
        wait_for(lambda: cluster.is_full(cluster.second), "its engines again", 120)
        wait_for(lambda: cluster.is_counted(client.answered()), "the usage of every answer", 60)
        assert client.answered(cluster.second.gateway)


def test_a_node_without_network_costs_no_answer_and_its_engines_go_on_when_it_is_back(cluster: Cluster) -> None:
    before = set(cluster.third.engines())
    assert len(before) == SLOTS
    with asking(cluster.network, cluster.key, cluster.first.gateway, cluster.second.gateway) as client:
        client.wait_for_more()
        cluster.third.cable("down")
        wait_for(lambda: "third" not in cluster.replicas(cluster.first).values(), "the loss of its engines", 60)
        client.wait_for_more()  # also of those that the lost engines had
        assert set(cluster.third.engines()) == before  # its agent changes nothing without the database
        cluster.third.cable("up")
        wait_for(lambda: cluster.is_full(cluster.first), "its engines again", 120)
        assert set(cluster.third.engines()) == before  # no other machine had a free slot
        client.wait_for_more()
        client.stop()
        assert [each for each in client.outcomes() if each.status != 200] == []
        wait_for(lambda: cluster.is_counted(client.answered()), "the usage of every answer", 60)


def test_a_node_without_network_whose_replicas_were_replaced_ends_its_engines_when_it_is_back(cluster: Cluster) -> None:
    for path, body in (("deployments/hearth-tiny/scale", size(4)), ("nodes/second/drain", {})):
        cluster.operator(cluster.first, f"/fleet/{path}", body)
    wait_for(lambda: cluster.placed() == {"first": 2, "third": 2}, "room on the second machine", 120)
    cluster.operator(cluster.first, "/fleet/nodes/second/uncordon", {})
    before = set(cluster.third.engines())
    with asking(cluster.network, cluster.key, cluster.first.gateway, cluster.second.gateway) as client:
        client.wait_for_more()
        cluster.third.cable("down")
        wait_for(lambda: cluster.placed() == {"first": 2, "second": 2}, "their replacement", 120)
        client.wait_for_more()
        assert set(cluster.third.engines()) == before
        cluster.third.cable("up")
        wait_for(lambda: cluster.third.engines() == {}, "the end of its engines", 60)
        client.wait_for_more()
        client.stop()
        assert [each for each in client.outcomes() if each.status != 200] == []
    assert cluster.placed() == cluster.open_leases() == {"first": 2, "second": 2}


def size(replicas: int) -> dict[str, int]:
    """Return the body of a request that scales a deployment."""
    return {"min_replicas": replicas, "max_replicas": replicas}
