"""Abilities follow from arguments and files alone; what neither says is not known."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest

from catalogue.file_facts import FileFacts
from catalogue.registry import ServedModel
from tenants.ids import RevisionId, TenantId
from workers.model_sources.source import facts_of
from workers.serving.model_facts import capabilities


def served(*engine_args: str, files: FileFacts | None = None, lora_adapters: int = 0, base: str = "") -> ServedModel:
    """Return a model whose engine is started like this."""
    return ServedModel(
        name="any",
        owner_id=TenantId(uuid4()),
        owner_slug="platform",
        public=True,
        revision_id=RevisionId(uuid4()),
        digest="d",
        context_length_tokens=0,
        created_at=0,
        engine_args=engine_args,
        file_facts=files,
        lora_adapters=lora_adapters,
        base=base,
    )


def test_without_files_and_parsers_little_is_known() -> None:
    found = capabilities.of(served())
    assert (found.task, found.completions, found.tools) == ("text", True, False)
    assert (found.chat, found.vision, found.reasoning) == (None, None, None)


@pytest.mark.parametrize(
    ("engine_args", "tools", "reasoning"),
    [
        (("--enable-auto-tool-choice", "--tool-call-parser", "hermes"), True, None),
        (("--enable-auto-tool-choice", "--no-enable-auto-tool-choice"), False, None),
        (("--reasoning-parser", "qwen3"), False, True),
        (("--reasoning-parser=qwen3",), False, True),
        (("--reasoning-parser", ""), False, None),
    ],
)
def test_parsers_tell_of_tools_and_reasoning(engine_args: tuple[str, ...], tools: bool, reasoning: bool | None) -> None:
    found = capabilities.of(served(*engine_args))
    assert (found.tools, found.reasoning) == (tools, reasoning)
    assert found.chat is (True if tools else None)


def test_an_engine_of_embeddings_writes_no_text() -> None:
    found = capabilities.of(served("--runner", "pooling"))
    assert (found.task, found.embeddings, found.chat, found.completions) == ("embeddings", True, False, False)


def test_files_tell_of_chat_and_images(tmp_path: Path) -> None:
    assert facts_of(tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {}}))
    assert facts_of(tmp_path) == FileFacts(chat=False, vision=True)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    found = capabilities.of(served(files=facts_of(tmp_path)))
    assert (found.chat, found.vision) == (True, True)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    assert facts_of(tmp_path) is None


def test_adapters_load_into_their_base_and_not_into_each_other() -> None:
    assert capabilities.of(served(lora_adapters=2)).lora is True
    assert capabilities.of(served(lora_adapters=2, base="any")).lora is False
