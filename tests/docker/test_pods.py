"""Every pod of the Helm chart, run exactly as rendered: its commands, variables, probes, user, file system and end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.docker import database_images as images
from tests.docker.chart import RELEASE, manifests
from tests.docker.pods import HOST, Answer, Network, Pod, status_of, until, unusable

pytestmark = [pytest.mark.long, pytest.mark.skipif(unusable() != "", reason=unusable())]

NODE = f"{RELEASE}-cpu-0"
REPLICAS = {"gateway": 2, "portal": 1, "control": 1, "inference": 1, "background": 1, "beat": 1}
#: So that a stream of 1,000 tokens takes twenty seconds.
SLOW = ["--decode-tokens-per-second", "50"]
FLEET = {
    "version": 1,
    "pools": [{"name": "cpu", "kind": "cpu"}],
    "models": [
        {"name": "chat", "visibility": "public", "prices": {"prompt": "1", "cached_prompt": "0.1", "completion": "2"}}
    ],
    "deployments": [
        {
            "model": "chat",
            "engine": "simulated",
            "pools": ["cpu"],
            "min_replicas": 2,
            "max_replicas": 2,
            "engine_args": SLOW,
        }
    ],
}
VALUES: dict[str, Any] = {
    "environment": {"HEARTH_DEMO": "1", "HEARTH_ALLOWED_HOSTS": "hearth-portal"},
    "bootstrap": {"contract": True},
    "fleet": FLEET,
    "nodes": [
        {"name": "cpu", "kind": "cpu", "replicas": 1, "slots": 2, "engine": "simulated", "storage": {"size": "1Gi"}}
    ],
    **{role: {"replicas": number} for role, number in REPLICAS.items()},
}


@dataclass(slots=True)
class Cluster:
    """The pods by name, and the jobs that Helm's hooks run."""

    folder: Path
    network: Network
    secrets: dict[str, dict[str, str]]
    values: dict[str, Any]
    pods: dict[str, Pod]

    def pod(self, name: str, spec: dict[str, Any]) -> Pod:
        """Make a pod of a template, not yet started."""
        configs = {
            each["metadata"]["name"]: each["data"] for each in manifests(self.values) if each["kind"] == "ConfigMap"
        }
        folder = self.folder / name
        folder.mkdir()
        self.pods[name] = Pod(name, spec, folder, self.secrets, configs, self.network)
        return self.pods[name]

    def run_job(self, name: str, attempt: int = 0) -> Pod:
        """Run a job to its end."""
        (found,) = (
            each for each in manifests(self.values) if each["kind"] == "Job" and each["metadata"]["name"] == name
        )
        pod = self.pod(f"{name}-{attempt}", found["spec"]["template"]["spec"])
        pod.start()
        assert pod.wait() == 0, pod.log(found["spec"]["template"]["spec"]["containers"][0]["name"])
        return pod

    def chat(self, gateway: str, content: str, key: str, **more: Any) -> Answer:
        """Ask a gateway as a tenant."""
        body = {"model": "chat", "messages": [{"role": "user", "content": content}], "max_tokens": 8, **more}
        url = f"http://{self.pods[gateway].address}:8080/v1/chat/completions"
        return self.network.fetch(url, {"Authorization": f"Bearer {key}"}, body)

    def usage(self, request_id: str) -> Answer:
        """Ask the portal, by the name of its service, for the usage of a request."""
        url = f"http://{self.pods[f'{RELEASE}-portal-0'].address}:8081/api/v1/usage/{request_id}"
        return self.network.fetch(url, {"Authorization": f"Bearer {self.key}", "Host": f"{RELEASE}-portal"})

    @property
    def key(self) -> str:
        """A key of the demo tenant acme."""
        volume = self.pods[f"{RELEASE}-bootstrap-0"].volume("data")
        return str(json.loads((volume / "data" / "demo-keys.json").read_text())["acme"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Install the chart: secrets, servers, the bootstrap job, every pod, the fleet job."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-pods-", dir="/var/tmp"))
    folder.chmod(0o711)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        network = Network()
        stack.callback(network.close)
        urls = images.postgres(folder / "servers", stack, sockets=folder / "sockets", nodes=[NODE])
        redis = images.redis(folder / "servers", stack, prefix=network.prefix, host=HOST)
        address = urls["DATABASE_URL"].partition("@")[2]
        values = VALUES | {
            "nodeDatabaseUrl": f"postgresql://hearth_node_$(HEARTH_NODE):$(NODE_DATABASE_PASSWORD)@{address}"
        }
        servers = urls | {
            "REDIS_URL": redis,
            "NODE_DATABASE_PASSWORD": images.NODE_PASSWORD,
            "NODE_REDIS_URL": redis.replace("redis://:r@", "redis://hearth-node:n@"),
        }
        found = Cluster(folder, network, _secrets(folder) | {"hearth-servers": servers}, values, {})
        stack.callback(_end, found)
        found.run_job(f"{RELEASE}-bootstrap")
        for each in manifests(values):
            if each["kind"] in {"StatefulSet", "Deployment"}:
                for number in range(each["spec"]["replicas"]):
                    found.pod(f"{each['metadata']['name']}-{number}", each["spec"]["template"]["spec"]).start()
        found.run_job(f"{RELEASE}-fleet")
        yield found


def test_every_probe_passes_and_a_request_is_answered_and_counted(cluster: Cluster) -> None:
    for pod in _running(cluster):
        pod.wait_until_ready()
    for gateway in (f"{RELEASE}-gateway-0", f"{RELEASE}-gateway-1"):
        ask = partial(cluster.chat, gateway, f"to {gateway}", cluster.key)
        _, headers, _ = until(_answered(ask), f"an answer of {gateway}")
        usage = partial(cluster.usage, headers["x-request-id"])
        until(_answered(usage), "the usage")
    portal = cluster.pods[f"{RELEASE}-portal-0"]
    status = portal.run(portal.spec["containers"][0], ["celery", "-A", "hearth", "fleet", "status"])
    assert (status.returncode, "All is well." in status.stdout) == (0, True), status.stdout + status.stderr


def test_no_container_is_root_or_can_become_it_and_only_volumes_can_be_written(cluster: Cluster) -> None:
    for pod in _running(cluster):
        for container in (*pod.spec["initContainers"][1:], *pod.spec["containers"]):
            status = status_of(pod.processes[container["name"]])
            assert status["Uid"].split() == ["10001"] * 4
            assert (status["CapEff"], status["CapBnd"], status["NoNewPrivs"]) == ("0" * 16, "0" * 16, "1")
            for folder in ("/", "/opt/hearth", "/opt/hearth/platform", "/var/lib"):
                assert "Read-only file system" in pod.run(container, ["touch", f"{folder}/x"]).stderr
            for mount in container["volumeMounts"]:
                assert pod.run(container, ["touch", f"{mount['mountPath']}/x"]).returncode == 0


def test_hooks_run_again_at_an_upgrade_and_change_nothing(cluster: Cluster) -> None:
    cluster.run_job(f"{RELEASE}-bootstrap", 1)
    again = cluster.run_job(f"{RELEASE}-fleet", 1)
    assert "nothing" in again.log("fleet").lower()
    cluster.run_job(f"{RELEASE}-contract")


def test_a_gateway_that_is_stopped_finishes_its_stream_and_its_usage_is_stored(cluster: Cluster) -> None:
    gateway = cluster.pods[f"{RELEASE}-gateway-1"]
    answers: list[Answer] = []
    asks = threading.Thread(
        target=lambda: answers.append(cluster.chat(gateway.name, "long", cluster.key, max_tokens=1000, stream=True))
    )
    asks.start()
    metrics = f"http://{gateway.address}:8082/metrics"

    def runs() -> bool:
        assert answers == []
        return "hearth_gateway_in_flight_requests 1.0" in cluster.network.fetch(metrics)[2]

    until(runs, "the stream")
    ended = gateway.stop()
    asks.join()
    ((status, headers, text),) = answers
    assert (status, text.strip().splitlines()[-1]) == (200, "data: [DONE]")
    assert ended == {"gateway": 0, "drain": 0}
    assert cluster.usage(headers["x-request-id"])[0] == 200


def test_a_node_that_is_stopped_ends_its_engines_in_order_and_every_other_pod_ends_with_it(cluster: Cluster) -> None:
    node = cluster.pods[NODE]
    assert len(node.pids()) > 4
    assert node.stop() == {"node": 0}
    assert "Stopped" in node.log("node")
    assert node.pids() == []
    for pod in _running(cluster):
        ended = pod.stop()
        assert set(ended.values()) == {0}, (pod.name, ended)


def _running(cluster: Cluster) -> list[Pod]:
    return [pod for pod in cluster.pods.values() if pod.processes and "terminationGracePeriodSeconds" in pod.spec]


def _answered(ask: Callable[[], Answer]) -> Callable[[], Answer | None]:
    """Return a condition: the answer, once it is 200."""

    def condition() -> Answer | None:
        answer = ask()
        return answer if answer[0] == 200 else None

    return condition


def _secrets(folder: Path) -> dict[str, dict[str, str]]:
    """Make the Secrets as the documentation does."""
    hearth = str(Path(sys.executable).with_name("hearth"))
    variables = os.environ | {"HEARTH_DATA_DIR": str(folder / "secrets")}
    variables.pop("DATABASE_URL", None)

    def run(*arguments: str) -> str:
        return subprocess.run([hearth, *arguments], env=variables, capture_output=True, text=True, check=True).stdout

    run("secrets", "create")
    return {
        "hearth-secrets": {"secrets.json": run("secrets", "export", "-", "--all")},
        "hearth-node-secrets": {"secrets.json": run("secrets", "export", "-")},
    }


def _end(cluster: Cluster) -> None:
    for pod in cluster.pods.values():
        pod.kill()
