"""The Helm chart, rendered by Helm itself, and what its manifests say of containers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import yaml

from hearth.paths import ROOT

CHART = ROOT / "docker" / "helm"
RELEASE = "hearth"
NODE_DATABASE_URL = "postgresql://hearth_node_$(HEARTH_NODE):$(NODE_DATABASE_PASSWORD)@db.example/hearth"
#: What a platform team would set: two groups of nodes, an ingress, a fleet, images by digest.
EXAMPLE: Mapping[str, Any] = {
    "nodeDatabaseUrl": NODE_DATABASE_URL,
    "trustedCertificates": {"configMap": "company-certificates", "key": "ca.crt"},
    "images": {"prefix": "registry.example/team/", "digests": {"hearth-gateway": f"sha256:{'0' * 64}"}},
    "environment": {"HEARTH_LOG_FORMAT": "json"},
    "bootstrap": {"contract": True},
    "control": {"exportsClaim": "usage-exports"},
    "ingress": {"enabled": True, "host": "llm.example", "tlsSecret": "llm-tls", "className": "nginx"},
    "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
    "nodes": [
        {
            "name": "h100",
            "kind": "gpu",
            "replicas": 2,
            "gpus": 8,
            "nodeSelector": {"nvidia.com/gpu.product": "H100"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "resources": {"requests": {"cpu": "16"}},
            "storage": {"size": "500Gi", "className": "nvme"},
        },
        {"name": "spare", "kind": "cpu", "replicas": 1, "slots": 2, "storage": {"size": "20Gi"}},
    ],
    "fleet": {"version": 1, "pools": [{"name": "h100", "kind": "gpu"}]},
}


def helm(*arguments: str, values: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run a command of Helm on the chart, with values given on standard input."""
    command = ["bash", str(ROOT / "scripts" / "helm"), *arguments, str(CHART), "--values", "-"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)


@cache
def _rendered(values: str) -> str:
    done = helm("template", RELEASE, values=json.loads(values))
    assert done.returncode == 0, done.stderr
    return done.stdout


def manifests(values: Mapping[str, Any] = EXAMPLE) -> list[dict[str, Any]]:
    """Return what Helm would apply, hooks included, in the order of its output."""
    return [found for found in yaml.safe_load_all(_rendered(json.dumps(values))) if found]


def manifest(kind: str, name: str, values: Mapping[str, Any] = EXAMPLE) -> dict[str, Any]:
    """Return one manifest. Raises ValueError if there is no such one, or more than one."""
    (found,) = (each for each in manifests(values) if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def pod_templates(values: Mapping[str, Any] = EXAMPLE) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the pod's specification of everything that runs pods."""
    for found in manifests(values):
        template = found["spec"].get("template") if "spec" in found else None
        if template is not None:
            yield found["metadata"]["name"], template["spec"]


def containers(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a pod's containers, in the order in which they start."""
    return [*pod.get("initContainers", ()), *pod["containers"]]
