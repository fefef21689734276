"""Check a model before it is deployed, so that nothing becomes public and no slot is used for one that cannot run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from catalogue import engine_options
from catalogue.administration import check_name
from catalogue.models import Model, ModelAlias, ModelRevision
from catalogue.registry import Description
from workers.engines import arguments
from workers.engines.errors import UnknownEngineKey
from workers.engines.options import own_arguments
from workers.errors import ModelRefused
from workers.fleet import model_options
from workers.fleet.model_options import OptionChange
from workers.model_sources import files as model_files
from workers.model_sources.files import CONFIGURATIONS, WEIGHTS, ModelFiles
from workers.model_sources.source import ModelSpec, context_length, deployment_name, is_tiny, spec_of
from workers.model_sources.source import own_arguments as own_arguments_of
from workers.models import Deployment, Pool, Slot
from workers.sizing import gpus
from workers.weights import choice, secrets
from workers.weights.secrets import SecretUnreadable

#: The column that stores it.
LONGEST_SOURCE = ModelRevision._meta.get_field("source").max_length or 0
REMOTE_CODE = "--trust-remote-code"
_MIB = 1 << 20


def check(name: str, spec: ModelSpec, pool: Pool | None) -> ModelSpec:
    """Check name, source and size of a model for a pool; return what to deploy, with the commit that it has now.

    Without a pool its size is not checked.

    Raises BadName, ModelRefused.
    """
    check_name(name)
    check_name_is_free(name)
    _check_length(spec)
    check_arguments(spec)
    if pool is not None:
        check_gang(spec.slots_per_replica, pool)
    engine_options.check(spec.options, slots=spec.slots_per_replica)
    if spec.engine != "vllm" or not spec.source:
        if spec.commit:
            raise ModelRefused("Only a model of the Hugging Face Hub has a revision.", "Leave --revision out.")
        return spec
    files = model_files.find(spec.source, spec.commit, spec.hub_token)
    if not any(each in files.sizes for each in CONFIGURATIONS):
        raise ModelRefused(f"{files.where} has no config.json, so it is no model that vLLM can load.", "")
    if not any(each.endswith(WEIGHTS) for each in files.sizes):
        raise ModelRefused(f"{files.where} has no weights ({', '.join(WEIGHTS)}).", "")
    _check_weights(files, spec)
    if pool is not None:
        check_fit(files, pool, spec.slots_per_replica)
    return replace(spec, commit=files.commit)


def pinned(spec: ModelSpec) -> ModelSpec:
    """Return a new model of `hearth up` with the commit that its Hugging Face id has now.

    Raises ModelRefused if nobody knows the model, or its weights are pickles.
    """
    if spec.engine != "vllm" or not spec.source:
        return spec
    files = model_files.find(spec.source, spec.commit, spec.hub_token)
    _check_weights(files, spec)
    return replace(spec, commit=files.commit)


def check_name_is_free(name: str) -> None:
    """Raise ModelRefused if the name is another model's alias, or leads to another model's deployment."""
    alias = ModelAlias.objects.filter(name=name).select_related("model").first()
    if alias is not None:
        raise ModelRefused(
            f"{name!r} is an alias of the model {alias.model.name!r}.",
            f"Choose another name, or remove the alias: `hearth model unalias {name}`.",
        )
    other = Deployment.objects.filter(name=deployment_name(name)).select_related("revision__model").first()
    if other is not None and other.revision.model.name != name:
        raise ModelRefused(
            f"{name!r} would have the same deployment, {other.name!r}, as the model {other.revision.model.name!r}.",
            "Choose a name that differs in more than case and punctuation.",
        )


def _check_length(spec: ModelSpec) -> None:
    if len(spec.source) > LONGEST_SOURCE:
        raise ModelRefused(f"--source has {len(spec.source)} characters; {LONGEST_SOURCE} are allowed.", "")


def check_arguments(spec: ModelSpec) -> None:
    """Raise ModelRefused for arguments of the engine that have an option of their own, or need to be allowed."""
    if (own := own_arguments.find(spec.engine_args)) is not None:
        raise ModelRefused(f"{own.name} is no argument for --engine-args.", own.instead)
    names = own_arguments.names(spec.engine_args)
    if not spec.allow_remote_code and any(REMOTE_CODE.startswith(name) for name in names):
        raise ModelRefused(
            f"{REMOTE_CODE} runs Python code of the model's author on this machine.",
            "Read that code, then trust this revision with --allow-remote-code.",
        )


def _check_weights(files: ModelFiles, spec: ModelSpec) -> None:
    """Raise ModelRefused if the engine would load pickles."""
    load_format = arguments.load_format(spec.engine_args)
    pickles = load_format in arguments.PICKLE_FORMATS or choice.has_pickles(files.names, load_format)
    if pickles and not spec.allow_pickle:
        raise ModelRefused(
            f"The weights of {files.where} would be loaded as Python pickles, not as safetensors.",
            "Convert them to safetensors, or trust this revision with `hearth deploy --allow-pickle`.",
        )


def check_gang(slots: int, pool: Pool) -> None:
    """Raise ModelRefused if no node of the pool has as many slots as one replica takes, quarantined ones included."""
    most = model_options.most_slots(pool)
    if most is not None and most < slots:
        raise ModelRefused(
            f"A replica would take {slots} slots of one node, and no node of pool {pool.name} has more than {most}.",
            "Give --slots-per-replica as many as a node has, or add a larger node.",
        )


def _memory_of_nodes(pool: Pool) -> list[list[int]]:
    """Return the memory of each node's usable slots, bytes, 0 where it is not known; the largest first."""
    found = defaultdict(list)
    slots = Slot.objects.filter(node__pool=pool, health=Slot.Health.OK)
    for node, memory in slots.values_list("node_id", "memory_bytes"):
        found[node].append(memory or 0)
    return [sorted(each, reverse=True) for each in found.values()]


def check_fit(files: ModelFiles, pool: Pool, slots: int) -> None:
    """Raise ModelRefused if the weights alone are larger than the slots of one node that a replica takes.

    Where no node of the pool has said what its slots have, the pool's type of GPU does.
    """
    gangs = [each[:slots] for each in _memory_of_nodes(pool) if len(each) >= slots and all(each[:slots])]
    if not gangs and pool.gpu_type in gpus.KNOWN:
        gangs = [[gpus.memory_bytes(pool.gpu_type)] * slots]
    largest = max(map(sum, gangs), default=None)
    if largest is not None and files.weight_bytes > largest:
        have = f"the largest slot of pool {pool.name} has" if slots == 1 else f"{slots} slots of pool {pool.name} have"
        raise ModelRefused(
            f"{files.where} has {files.weight_bytes // _MIB} MiB of weights, and {have} {largest // _MIB} MiB.",
            "Take more slots by --slots-per-replica (`hearth size` says how many), a smaller or quantised model, or a "
            "node with more memory.",
        )


def check_options(found: Deployment, described: Description, change: OptionChange) -> Description:
    """Check new options of what a deployment serves against its files; return them with a context that these allow.

    A model whose files this machine does not have is left to its engines. Raises ModelRefused if its weights do not
    fit into the slots of a replica, or a Hugging Face id cannot be looked up.
    """
    folder, revision = Path(described.source), found.revision
    if change.context_tokens is not None:
        described = replace(described, context_length_tokens=context_length(folder, described.context_length_tokens))
    elsewhere = folder.is_absolute() and not folder.is_dir()
    if change.slots_per_replica is None or revision.engine != "vllm" or is_tiny(revision.source) or elsewhere:
        return described
    for pool in model_options.pools_of(found)[:1]:
        token = stored_token(revision.model.name)
        found_files = model_files.find(revision.source, arguments.commit_of(revision.engine_args), token)
        check_fit(found_files, pool, described.slots_per_replica)
    return described


def all_arguments(revision: ModelRevision, own: Sequence[str]) -> tuple[str, ...]:
    """Return what an engine of the revision would be started with if somebody chose these arguments instead.

    Raises ModelRefused for those that `hearth deploy` refuses, and for another format of the weights, which decides
    which files are fetched.
    """
    before = own_arguments_of(revision)
    trusted = REMOTE_CODE in before
    spec = replace(spec_of(revision), engine_args=tuple(own), allow_remote_code=trusted)
    check_arguments(spec)
    if arguments.load_format(own) != arguments.load_format(before):
        raise ModelRefused(
            "The format of the weights decides which files nodes fetch, so it is changed with the source only.",
            f"Deploy the model again: `hearth deploy {revision.model.name} --source … --engine-args=…`.",
        )
    return (*spec.needed_args(), *own)


def token_of(name: str, secret: str | None) -> str | None:
    """Return the token that a model will have with this secret, None for the one that it has.

    Raises NotFound, ModelRefused.
    """
    if secret is None:
        return stored_token(name)
    try:
        return secrets.read(secret) if secret else None
    except (UnknownEngineKey, SecretUnreadable) as error:
        raise ModelRefused(
            f"The secret {secret} cannot be read: {error}.", f"Set it again: `hearth secret set {secret}`."
        ) from error


def stored_token(name: str) -> str | None:
    """Return the token of a model for the hub, if it has one. Raises ModelRefused if that cannot be opened."""
    model = Model.objects.filter(name=name).first()
    try:
        return secrets.read_of_model(model.id) if model is not None else None
    except (UnknownEngineKey, SecretUnreadable) as error:
        raise ModelRefused(
            f"The stored token of {name} cannot be read: {error}.", f"Set it again: `hearth model secret {name}`."
        ) from error
