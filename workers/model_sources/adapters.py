"""Deploy a LoRA adapter: a model of its own, named ``base:adapter``, in the replicas of its base."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from django.db import transaction

from catalogue import adapters, administration, engine_options, registry
from catalogue.adapters import Adapter
from catalogue.engine_options import EngineOptions
from catalogue.models import Model, ModelRevision
from catalogue.registry import Description
from tenants import registry as tenants
from tenants.audit import Actor
from tenants.ids import PLATFORM_SLUG
from workers import tasks
from workers.errors import ModelRefused
from workers.fleet import rollouts
from workers.model_sources import adapter_files, checks
from workers.model_sources import files as model_files
from workers.model_sources.files import ModelFiles
from workers.models import AdapterLoad, Deployment
from workers.weights import hub_tokens, secrets
from workers.weights.folder import folder_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec:
    """An adapter to serve. ``source`` is a Hugging Face id or a folder."""

    name: str
    source: str
    #: The branch, tag or commit of a Hugging Face id; empty: main.
    commit: str = ""
    #: Slug of the tenant that owns it; None: as before, the platform for a new one.
    owner: str | None = None
    hub_token: str | None = field(default=None, repr=False)
    #: The named secret that holds the token; None: as before.
    secret: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What an adapter changes: a model, and what its replicas run, or will."""

    name: str
    source: str
    engine: Literal["vllm", "simulated"]
    options: EngineOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """An adapter that can be deployed. ``notes`` are sentences to show."""

    base: str
    owner: str
    described: Description
    hub_token: str | None
    secret: str | None
    notes: tuple[str, ...]


def base_of(name: str) -> Model | None:
    """Return the model that ``base:adapter`` names first, by its name or an alias; None if there is none."""
    parts = adapters.split(name)
    if parts is None:
        return None
    rows = Model.objects.filter(base=None, archived_at=None)
    return rows.filter(name=parts[0]).first() or rows.filter(aliases__name=parts[0]).first()


def is_adapter(
    name: str, source: str, commit: str = "", *, hub_token: str | None = None, secret: str | None = None
) -> bool:
    """Return whether the source has the files of an adapter.

    Raises ModelRefused if its name says of no model, NotFound for the secret.
    """
    folder = Path(source)
    known = Model.objects.filter(name=name).exclude(base=None).exists()
    if not known and not folder.is_dir() and base_of(name) is None:
        return False  # the hub is asked once, when the model is checked
    token = hub_token or checks.token_of(name, secret)
    if not adapter_files.is_adapter(model_files.find(source, commit, token)):
        return False
    if not known and base_of(name) is None:
        raise ModelRefused(
            f"{source} has a LoRA adapter, and {name!r} does not name the model that it changes.",
            "Name it after that model, as in `hearth deploy chat:tone`; `hearth model list` shows the models.",
        )
    return True


def check(spec: AdapterSpec, base: Base | None = None) -> Checked:
    """Check name, base, files and owner of an adapter.

    ``base``: what it will be; None: as it is deployed. Raises BadName, ModelRefused, NotFound for the tenant.
    """
    administration.check_name(spec.name)
    present = Model.objects.select_related("base", "owner").filter(name=spec.name).first()
    if present is not None and present.base is None:
        raise ModelRefused(f"{spec.name!r} is a model, and no adapter.", "Choose another name for the adapter.")
    if base is None:
        row = base_of(spec.name) if present is None else present.base
        if row is None:
            raise ModelRefused(f"There is no model for {spec.name!r} to change.", "Name it base:adapter.")
        base = deployed_base(row)
    checks.check_name_is_free(spec.name)
    owner = spec.owner or (present.owner.slug if present is not None else PLATFORM_SLUG)
    tenants.find_tenant(owner)
    token = spec.hub_token or checks.token_of(spec.name, spec.secret)
    files = model_files.find(spec.source, spec.commit, token)
    found = adapter_files.check(
        spec.source, files, base.name, base.options, base.source, token, checks.stored_token(base.name)
    )
    return Checked(
        base=base.name,
        owner=owner,
        described=_described(spec, files, base, found),
        hub_token=spec.hub_token,
        secret=spec.secret,
        notes=_notes(spec.name, base, found),
    )


@transaction.atomic
def deploy(actor: Actor, checked: Checked) -> ModelRevision:
    """Let the replicas of its base load the adapter; an archived one is restored. Idempotent.

    Of a known adapter this revision is active once every ready replica has loaded it; where loading it failed it is
    tried again at once. Raises NotAllowed if the name is another tenant's.
    """
    owner = tenants.find_tenant(checked.owner)
    base = Model.objects.get(name=checked.base)
    revision = registry.record(actor, owner, checked.described, base=base)
    if checked.hub_token is not None:
        hub_tokens.store(actor, revision.model, checked.hub_token)
    if checked.secret is not None:
        secrets.use(actor, revision.model, checked.secret)
    adapters.want(actor, revision)
    administration.restore(actor, checked.described.name)
    failed = AdapterLoad.objects.filter(revision=revision, state=AdapterLoad.State.FAILED)
    nodes = set(failed.exclude(replica__node=None).values_list("replica__node__name", flat=True))
    failed.update(next_attempt_at=None, attempts=0)
    tasks.hint(nodes)
    return revision


def deploy_spec(actor: Actor, spec: AdapterSpec, warn: Callable[[str], None]) -> ModelRevision:
    """Check an adapter and deploy it. Raises as :func:`check` and :func:`deploy`."""
    checked = check(spec)
    for note in checked.notes:
        warn(note)
    return deploy(actor, checked)


def deployed_base(model: Model) -> Base:
    """Return what a model serves, or will after its rollout. Raises ModelRefused if it is not deployed."""
    rows = Deployment.objects.select_related("revision__model").filter(revision__model=model, archived_at=None)
    found = rows.order_by("name").first()
    if found is None:
        raise ModelRefused(f"{model.name} is not deployed.", f"Deploy it first: `hearth deploy {model.name}`.")
    revision = rollouts.as_wanted(found).revision
    return Base(
        name=model.name,
        source=revision.source,
        engine=cast(Literal["vllm", "simulated"], revision.engine),
        options=engine_options.from_json(revision.options),
    )


def _described(spec: AdapterSpec, files: ModelFiles, base: Base, found: Adapter) -> Description:
    folder = Path(spec.source)
    is_folder = folder.is_dir()
    pinned = ("--revision", files.commit) if files.commit and base.engine == "vllm" else ()
    return Description(
        name=spec.name,
        source=str(folder.absolute()) if is_folder else spec.source,
        engine=base.engine,
        engine_args=pinned,
        context_length_tokens=0,
        weights_digest=folder_digest(folder) if is_folder else "",
        adapter=found,
    )


def _notes(name: str, base: Base, found: Adapter) -> tuple[str, ...]:
    notes = []
    if found.trained_on and found.trained_on not in {base.source, base.name}:
        notes.append(f"{name} was trained on {found.trained_on!r}, and {base.name} serves {base.source!r}.")
    others = Model.objects.filter(base__name=base.name, archived_at=None).exclude(name=name).count()
    if others + 1 > base.options.lora_adapters:
        notes.append(
            f"{base.name} has {others + 1} adapters, and one batch uses {base.options.lora_adapters} of them: requests "
            "for others wait, and an engine reads those again that it has put away. "
            f"`hearth deploy {base.name} --lora-adapters {others + 1}` takes memory for all."
        )
    return tuple(notes)
