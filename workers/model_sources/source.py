"""Describe a model that this machine can read. Django must be set up."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from catalogue.engine_options import DEFAULT as DEFAULT_OPTIONS
from catalogue.engine_options import EngineOptions
from catalogue.file_facts import FileFacts
from catalogue.models import ModelRevision
from catalogue.registry import Description
from workers.engines import model_families
from workers.engines.arguments import commit_of
from workers.engines.driver import (
    DEFAULT_CONTEXT_TOKENS,
    EMBEDDING_ARGS,
    TINY_MODEL,
    TINY_MODEL_ARGS,
    serves_embeddings,
)
from workers.weights.folder import folder_digest

TINY_NAME = "hearth-tiny"
#: Files that hold a chat template, where ``tokenizer_config.json`` does not.
CHAT_TEMPLATES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model to serve. ``source`` is a Hugging Face id, a folder, or empty for the tiny model."""

    source: str
    engine: Literal["vllm", "simulated"]
    #: Empty: the name of the folder, or the Hugging Face id.
    name: str = ""
    task: Literal["text", "embeddings"] = "text"
    #: Additional arguments of the engine, after those that the model and the task need.
    engine_args: tuple[str, ...] = ()
    #: Limit of prompt and response together; 0: the model's own. A folder with a smaller limit keeps its own.
    context_tokens: int = DEFAULT_CONTEXT_TOKENS
    #: The branch, tag or commit of a Hugging Face id that is wanted, later the commit that runs; empty: main.
    commit: str = ""
    #: Its author's code may run on the engines' machines: Python modules, or weights that are pickles.
    allow_remote_code: bool = False
    allow_pickle: bool = False
    #: Slots of one node that each replica takes; a model is divided among as many GPUs.
    slots_per_replica: int = 1
    options: EngineOptions = DEFAULT_OPTIONS
    #: Of the engine, in full. None: not chosen yet. Empty: the first one that each node has.
    engine_version: str | None = None
    #: Slugs of the tenants that see it beside the platform; None: a new model is public, a known one stays as it is.
    tenants: tuple[str, ...] | None = None
    #: The token that reads the model on the hub; None: the stored one, if there is one.
    hub_token: str | None = field(default=None, repr=False)
    #: The name of the secret that reads it there instead; None: the present one, if there is one.
    secret: str | None = None

    def model_name(self) -> str:
        """Return the name under which clients call it."""
        folder = Path(self.source or TINY_MODEL)
        return self.name or (TINY_NAME if not self.source else folder.name if folder.is_dir() else self.source)

    def stored_source(self) -> str:
        """Return the source as a revision has it: a folder by its absolute path."""
        folder = Path(self.source or TINY_MODEL)
        return str(folder.absolute()) if folder.is_dir() else self.source

    def described(self, weights_digest: str | None = None) -> Description:
        """Return the description to register. Reads every file of a folder, unless given its digest. Raises OSError."""
        folder = Path(self.source or TINY_MODEL)
        return Description(
            name=self.model_name(),
            source=self.stored_source(),
            engine=self.engine,
            engine_args=(*self.needed_args(), *self.engine_args),
            context_length_tokens=context_length(folder, self.context_tokens),
            weights_digest=weights_digest if weights_digest is not None else folder_digest(folder),
            public=self.tenants is None,
            options=self.options,
            slots_per_replica=self.slots_per_replica,
            engine_version=self.engine_version or "",
            file_facts=facts_of(folder),
        )

    def family_args(self) -> tuple[str, ...]:
        """Return the parsers of the model's family, unless ``engine_args`` replaces them; empty for embeddings."""
        if self.task == "embeddings" or not self.source:
            return ()
        return model_families.default_args(self.source, self.engine_args)

    def needed_args(self) -> tuple[str, ...]:
        if not self.source:
            return EMBEDDING_ARGS if self.task == "embeddings" else TINY_MODEL_ARGS
        pinned = ("--revision", self.commit) if self.commit and self.engine == "vllm" else ()
        return (*pinned, *(EMBEDDING_ARGS if self.task == "embeddings" else self.family_args()))


def spec_of(revision: ModelRevision) -> ModelSpec:
    """Return what a revision was deployed as, without the arguments that somebody chose."""
    given = tuple(revision.engine_args)
    return ModelSpec(
        source="" if is_tiny(revision.source) else revision.source,
        engine=revision.engine,  # type: ignore[arg-type]  # the column has no other values
        task="embeddings" if serves_embeddings(given) else "text",
        commit=commit_of(given),
    )


def own_arguments(revision: ModelRevision) -> tuple[str, ...]:
    """Return the arguments that somebody chose for a revision, without those that its model and its task need."""
    given, spec = tuple(revision.engine_args), spec_of(revision)
    for count in range(len(given) + 1):
        if replace(spec, engine_args=given[count:]).needed_args() == given[:count]:
            return given[count:]
    return given[2:] if given[:1] == ("--revision",) else given


def is_tiny(source: str) -> bool:
    """Return whether this is the folder of the tiny model, in this installation or one that it replaced."""
    return Path(source).parts[-3:] == TINY_MODEL.parts[-3:]


def deployment_name(model_name: str) -> str:
    """Return the name of a model's deployment: only characters that a URL allows, at most 63."""
    return "".join(c if c.isalnum() else "-" for c in model_name.lower()).strip("-")[:63].strip("-")


def facts_of(folder: Path) -> FileFacts | None:
    """Return what the files in a model's folder say of what it can do; None if they are not on this machine."""
    try:
        config = json.loads((folder / "config.json").read_text())
        tokenizer = folder / "tokenizer_config.json"
        template = json.loads(tokenizer.read_text()).get("chat_template") if tokenizer.is_file() else None
    except (OSError, ValueError, RecursionError, AttributeError):
        return None
    has_template = bool(template) or any((folder / name).is_file() for name in CHAT_TEMPLATES)
    return FileFacts(chat=has_template, vision=isinstance(config, dict) and "vision_config" in config)


def context_length(folder: Path, wanted: int) -> int:
    """Return ``wanted``, or the model's own limit if its folder states a smaller one."""
    config = folder / "config.json"
    if not config.is_file():
        return wanted
    return min(wanted, int(json.loads(config.read_text()).get("max_position_embeddings") or wanted))
