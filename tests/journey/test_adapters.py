"""A tenant's LoRA adapter on a running instance: it answers for its tenant, and does not exist for another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import lora
from tests.journey import extra_models
from tests.journey.instance import Instance, request, wait_for

pytestmark = [pytest.mark.journey, pytest.mark.long]

BASE, NAME = "lora-base", "lora-base:tone"
#: Every path that names a model, with what else it needs.
DOORS: dict[str, dict[str, object]] = {
    "/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/completions": {"prompt": "Hi", "max_tokens": 1},
    "/responses": {"input": "Hi", "max_output_tokens": 1},
    "/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    "/embeddings": {"input": "Hi"},
    "/tokenize": {"prompt": "Hi"},
}


def test_an_adapter_is_its_tenants_alone(simulated: Instance, tmp_path: Path) -> None:
    folder = lora.write(tmp_path / "tone")
    for each in (tmp_path, *tmp_path.parents):
        if each.owner() == folder.owner():
            each.chmod(each.stat().st_mode | 0o011)
    with extra_models.deployed(simulated, BASE, "--lora-adapters", "2"):
        done = simulated.hearth("deploy", NAME, "--source", str(folder), "--tenant", "acme")
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert "no price" in done.stdout
        body = {"model": NAME, **DOORS["/chat/completions"], "temperature": 0, "max_tokens": 16}
        answer = wait_for(
            lambda: (
                found
                if (found := simulated.call("/chat/completions", simulated.key("acme"), body)).status == 200
                else None
            ),
            "an answer of the adapter",
            seconds=60,
        ).json()
        assert answer["model"] == NAME
        base = simulated.call("/chat/completions", simulated.key("acme"), body | {"model": BASE}).json()
        assert base["choices"][0]["message"]["content"] != answer["choices"][0]["message"]["content"]
        for path, fields in DOORS.items():
            refused = simulated.call(path, simulated.key("globex"), {"model": NAME, **fields})
            assert refused.status == 404, (path, refused)
            assert NAME in refused.text
        for slug, status in (("acme", 200), ("globex", 404)):
            assert request(f"{simulated.api_base}/models/{NAME}", simulated.key(slug)).status == status
            assert request(f"{simulated.management}/models/{NAME}", simulated.key(slug)).status == status
        for path in ("/load_lora_adapter", "/unload_lora_adapter"):
            assert simulated.call(path, simulated.key("acme"), {"lora_name": NAME}).status == 404
        assert simulated.hearth("model", "archive", NAME).returncode == 0
        wait_for(
            lambda: simulated.call("/chat/completions", simulated.key("acme"), body).status == 404,
            "the adapter's end",
            seconds=30,
        )
