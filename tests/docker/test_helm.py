"""The Helm chart: valid, whole in itself, without rights that nothing needs, and true to the roles' own settings."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hearth.environment import variables
from hearth.instance.health_ports import ORDER
from hearth.instance.roles import BY_NAME
from hearth.paths import ROOT
from tests.docker.chart import CHART, EXAMPLE, RELEASE, containers, helm, manifest, manifests, pod_templates
from tests.docker.files import COMPOSE, compose, stages

STAGES = stages()
PODS = dict(pod_templates())
#: What compose runs of Hearth itself, by name.
SERVICES = {name: found for name, found in compose(COMPOSE)["services"].items() if "build" in found}
TRUST = {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}
#: Of the chart itself, of the Hugging Face hub, and of what trusts certificates.
OWN_VARIABLES = {"NODE_DATABASE_PASSWORD", "HF_TOKEN", *TRUST}
FIRST_HEALTH_PORT = 8082


def with_values(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy({**EXAMPLE, **changes})


@pytest.mark.parametrize("values", [{}, EXAMPLE], ids=["default", "example"])
def test_the_linter_has_nothing_to_say(values: dict[str, Any]) -> None:
    done = helm("lint", "--strict", values=values)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", ["1.31", "1.34", "1.37"])
def test_the_manifests_fit_the_schemas_of_kubernetes(version: str, tmp_path: Path) -> None:
    rendered = tmp_path / "manifests.yaml"
    rendered.write_text(yaml.safe_dump_all(manifests()))
    validate = [str(Path(sys.executable).with_name("kubernetes-validate")), "--strict", "-k", version, str(rendered)]
    done = subprocess.run(validate, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed for resource ") + done.stderr.count(" passed for resource ") == len(manifests())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (with_values(gateway={"replicas": 0}), "/gateway/replicas"),
        (with_values(gatway={}), "gatway"),
        (
            with_values(nodes=[{"name": "gateway", "kind": "cpu", "replicas": 1, "storage": {"size": "1Gi"}}]),
            "/nodes/0",
        ),
        (with_values(nodes=[{"name": "a", "kind": "gpu", "replicas": 1, "storage": {"size": "1Gi"}}]), "gpus"),
        (with_values(environment={"DATABASE_URL": "postgresql://all:rights@db/hearth"}), "DATABASE_URL"),
        (with_values(images={"digests": {"hearth-gateway": "latest"}}), "hearth-gateway"),
        (with_values(trustedCertificates={"configMap": "a", "secret": "b"}), "/trustedCertificates"),
        (with_values(environment={"SSL_CERT_FILE": "/tmp/ca.pem"}), "SSL_CERT_FILE"),
        (with_values(nodeDatabaseUrl=""), "nodeDatabaseUrl: the address of PostgreSQL as a node's role"),
        (with_values(ingress={"enabled": True}), "ingress.host: the host name"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], words: str) -> None:
    done = helm("template", RELEASE, values=values)
    assert done.returncode != 0
    assert words in done.stderr


@pytest.mark.parametrize("name", PODS)
def test_a_pod_has_no_right_that_it_does_not_need(name: str) -> None:
    pod = PODS[name]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert str(pod["securityContext"]["runAsUser"]) == STAGES["gateway"].user
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert not [each for each in pod["volumes"] if "hostPath" in each]
    for container in containers(pod):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", PODS)
def test_what_an_image_writes_to_is_a_volume(name: str) -> None:
    pod = PODS[name]
    claims = next((each["spec"].get("volumeClaimTemplates", ()) for each in manifests() if _runs(each, pod)), ())
    given = {each["name"] for each in pod["volumes"]} | {each["metadata"]["name"] for each in claims}
    for container in containers(pod):
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        assert set(mounts.values()) <= given
        environment = STAGES[_image(container)].environment
        assert {environment["TMPDIR"], environment["XDG_CACHE_HOME"], environment["HEARTH_DATA_DIR"]} <= mounts.keys()
        if "agent" in container["image"]:
            assert environment["HEARTH_ENGINE_VENV"] in mounts


@pytest.mark.parametrize("name", PODS)
def test_every_variable_is_a_setting_and_no_secret_is_written_down(name: str) -> None:
    for container in containers(PODS[name]):
        given = {each["name"]: each for each in container.get("env", ())}
        assert given.keys() <= set(variables()) | OWN_VARIABLES
        for variable, found in given.items():
            if variable in {"HEARTH_API_URL", "HEARTH_PORTAL_URL"}:  # the ingress serves both under one address
                assert found["value"] == f"https://{EXAMPLE['ingress']['host']}"
            elif re.search("PASSWORD|URL", variable) and "value" in found:
                assert found["value"] == EXAMPLE["nodeDatabaseUrl"]


def test_every_image_is_used_and_runs_what_it_runs_under_compose() -> None:
    used = {_image(container): container["command"] for pod in PODS.values() for container in pod["containers"]}
    used |= {"drain": ["hearth", "role", "drain"]}
    assert used.keys() == STAGES.keys() - {"install", "hearth"}
    for role in BY_NAME.keys() - {"agent"}:
        assert used[role] == STAGES[role].command


@pytest.mark.parametrize("service", SERVICES)
def test_a_pod_has_the_variables_and_folders_of_its_service_under_compose(service: str) -> None:
    """Beside those that compose gives to every service, which the chart leaves to the value environment."""
    found = SERVICES[service]
    image = found["build"]["target"]
    everywhere = set.intersection(*({*each["environment"]} for each in SERVICES.values()))
    variables_of_it = found["environment"].keys() - (everywhere - {"DATABASE_URL", "REDIS_URL", "HEARTH_NODE"})
    folders = {volume.rsplit(":", 1)[1] for volume in found["volumes"] if not volume.endswith(":ro")}
    running = [each for pod in PODS.values() for each in containers(pod) if _image(each) == image]
    running = [each for each in running if each["name"] != "secrets"]
    assert running
    for container in running:
        assert {each["name"] for each in container["env"]} >= variables_of_it
        assert {each["mountPath"] for each in container["volumeMounts"]} >= folders


@pytest.mark.parametrize("role", sorted(BY_NAME.keys() - {"agent", "drain"}))
def test_probes_ask_the_roles_own_health_pages(role: str) -> None:
    found = next(each for each in containers(PODS[f"{RELEASE}-{role}"]) if each["name"] == role)
    ports = {each["name"]: each["containerPort"] for each in found["ports"]}
    assert ports["metrics"] == FIRST_HEALTH_PORT + ORDER.index(role)
    for probe, path in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert found[probe]["httpGet"] == {"path": path, "port": "metrics"}


@pytest.mark.parametrize("role", ["gateway", "control", "inference"])
def test_a_role_that_writes_usage_has_a_volume_and_a_drain_that_ends_after_it(role: str) -> None:
    found = manifest("StatefulSet", f"{RELEASE}-{role}")["spec"]
    secrets, drain = found["template"]["spec"]["initContainers"]
    assert secrets["command"][:3] == ["hearth", "secrets", "import"]
    assert (drain["name"], drain["restartPolicy"]) == ("drain", "Always")
    (claim,) = found["volumeClaimTemplates"]
    (main,) = found["template"]["spec"]["containers"]
    for container in (drain, main):
        assert {"name": claim["metadata"]["name"], "mountPath": "/var/lib/hearth"} in container["volumeMounts"]
    # preStop, the role's own time, then the drain's
    grace = found["template"]["spec"]["terminationGracePeriodSeconds"]
    pause = 5 if "lifecycle" in main else 0
    assert grace >= pause + BY_NAME[role].grace_seconds + BY_NAME["drain"].grace_seconds


def test_control_writes_the_files_of_deleted_days_to_a_claim_of_all_its_pods() -> None:
    for values, expected in ((EXAMPLE, ["usage-exports"]), (with_values(control={}), [])):
        pod = manifest("StatefulSet", f"{RELEASE}-control", values)["spec"]["template"]["spec"]
        claims = [each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if each["name"] == "exports"]
        assert claims == expected
        (main,) = pod["containers"]
        folders = [each["value"] for each in main["env"] if each["name"] == "HEARTH_USAGE_EXPORT_DIR"]
        mounts = [each["mountPath"] for each in main["volumeMounts"] if each["name"] == "exports"]
        assert folders == mounts == ["/var/lib/hearth-exports"] * len(expected)


@pytest.mark.parametrize(
    ("given", "volume"),
    [
        ({"configMap": "company", "key": "ca.crt"}, {"configMap": {"name": "company", "items": ["ca.crt"]}}),
        ({"secret": "company"}, {"secret": {"secretName": "company", "items": ["ca-bundle.pem"]}}),
        ({}, None),
    ],
    ids=["a ConfigMap", "a Secret", "none"],
)
def test_every_process_trusts_the_certificates_that_are_named(given: dict[str, str], volume: dict[str, Any]) -> None:
    for _, pod in pod_templates(with_values(trustedCertificates=given)):
        found = [each for each in pod["volumes"] if each["name"] == "trusted-certificates"]
        for each in found:
            del each["name"]
            source = each.get("configMap") or each["secret"]
            assert {item["path"] for item in source["items"]} == {"ca-bundle.pem"}
            source["items"] = [item["key"] for item in source["items"]]
        assert found == [volume] * len(found)
        assert len(found) == bool(given)
        for container in containers(pod):
            if container["name"] == "secrets":  # it copies files
                continue
            folders = [
                each["mountPath"] for each in container["volumeMounts"] if each["name"] == "trusted-certificates"
            ]
            files = {each["name"]: each["value"] for each in container["env"] if each["name"] in TRUST}
            assert files == {name: f"{folder}/ca-bundle.pem" for folder in folders for name in TRUST}
            assert len(folders) == bool(given)


def test_nodes_get_their_part_of_the_secrets_and_their_own_role_in_the_database() -> None:
    for name in ("h100", "spare"):
        pod = PODS[f"{RELEASE}-{name}"]
        assert [each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each] == ["hearth-node-secrets"]
        (node,) = pod["containers"]
        keys = {
            each["valueFrom"]["secretKeyRef"]["key"]
            for each in node["env"]
            if "secretKeyRef" in each.get("valueFrom", {})
        }
        assert keys == {"NODE_DATABASE_PASSWORD", "NODE_REDIS_URL", "HF_TOKEN"}


def test_a_pod_of_a_gpu_node_owns_all_gpus_and_shares_no_machine() -> None:
    pod = PODS[f"{RELEASE}-h100"]
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}
    (rule,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert "limits" not in PODS[f"{RELEASE}-spare"]["containers"][0]["resources"]


def test_every_group_of_pods_has_a_budget_and_a_policy_that_select_it() -> None:
    components = {
        each["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
        for each in manifests()
        if each["kind"] in {"StatefulSet", "Deployment"}
    }
    budgets = {_selected(each["spec"]["selector"]) for each in manifests() if each["kind"] == "PodDisruptionBudget"}
    policies = {_selected(each["spec"]["podSelector"]) for each in manifests() if each["kind"] == "NetworkPolicy"}
    # one process of beat is enough at a time, and a budget would keep its machine from being drained
    assert budgets == components - {"beat"}
    assert policies == components


def test_an_image_is_named_by_its_digest_if_there_is_one() -> None:
    images = {container["image"] for pod in PODS.values() for container in containers(pod)}
    assert f"registry.example/team/hearth-gateway@sha256:{'0' * 64}" in images
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert f"registry.example/team/hearth-portal:{version}" in images
    project = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert project is not None
    assert version == project[1]


def test_the_documentations_values_render() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    (example,) = re.findall(r"^```yaml values\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert manifests(yaml.safe_load(example))


def _image(container: dict[str, Any]) -> str:
    found = re.search(r"hearth-([a-z-]+)[:@]", container["image"])
    assert found is not None
    return found[1]


def _runs(found: dict[str, Any], pod: dict[str, Any]) -> bool:
    return bool(found.get("spec", {}).get("template", {}).get("spec") == pod)


def _selected(selector: dict[str, Any]) -> str:
    return str(selector["matchLabels"]["app.kubernetes.io/component"])
