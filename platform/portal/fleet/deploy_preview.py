"""What a page shows before a model is deployed: the sizer's figures, what is not known, and the same as a command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from dataclasses import dataclass
from functools import partial

from django.utils.translation import gettext

from catalogue import engine_options
from workers.engines.driver import DEFAULT_CONTEXT_TOKENS
from workers.errors import ModelRefused, WorkerError
from workers.fleet import error_text, pools
from workers.model_sources import sizing
from workers.model_sources.sizing import Sized
from workers.model_sources.source import ModelSpec, deployment_name
from workers.models import Deployment, Pool
from workers.sizing.errors import CannotSize, DoesNotFit

#: How long a page waits for a model's config.json from the hub.
WAIT_SECONDS = 8.0
#: Threads that wait for a hub; one that hangs takes one of them until its own timeout.
_readers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="config-json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """``figures`` are names with values, empty if there are none; ``notes`` say what is not known, and what to know."""

    figures: Sequence[tuple[str, str]]
    notes: Sequence[str]
    command: str


def of(spec: ModelSpec, pool: Pool, replicas: int | None) -> Preview:
    """Return what is known of a deployment before it is made. Reading the model's config.json is bounded in time."""
    notes: list[str] = []
    found = _sized(spec, pool, notes)
    if found is not None:
        notes += [f"{note}." for note in found.shape.notes]
        if found.layout.gpus > spec.slots_per_replica:
            needed, given = found.layout.gpus, spec.slots_per_replica
            notes.append(
                gettext("By this estimate it needs %(needed)s GPUs, and a replica would have %(given)s.")
                % {"needed": needed, "given": given}
            )
    if Deployment.objects.filter(name=deployment_name(spec.model_name()), archived_at=None).exists():
        notes.append(gettext("A model of this name is deployed: a rollout replaces its replicas by these."))
    return Preview(
        figures=found.rows() if found is not None else (), notes=notes, command=command(spec, pool, replicas)
    )


def command(spec: ModelSpec, pool: Pool, replicas: int | None) -> str:
    """Return the same as a command."""
    words = ["hearth", "deploy", spec.model_name(), "--pool", pool.name]
    given: list[tuple[str, object, object]] = [
        ("--source", spec.source, ""),
        ("--revision", spec.commit, ""),
        ("--engine", spec.engine, "vllm"),
        ("--task", spec.task, "text"),
        ("--replicas", 1 if replicas is None else replicas, 1),
        ("--slots-per-replica", spec.slots_per_replica, 1),
        ("--context-tokens", spec.context_tokens or "auto", DEFAULT_CONTEXT_TOKENS),
        ("--secret", spec.secret or "", ""),
        *((f"--{name.replace('_', '-')}", value, None) for name, value in engine_options.to_json(spec.options).items()),
    ]
    for name, value, default in given:
        if value != default:
            words += [name, str(value)]
    if spec.engine_args:
        words.append(f"--engine-args={shlex.join(spec.engine_args)}")
    if spec.allow_remote_code:
        words.append("--allow-remote-code")
    if spec.allow_pickle:
        words.append("--allow-pickle")
    if spec.tenants is not None:
        words += ["--private", *(word for slug in spec.tenants for word in ("--tenant", slug))]
    return shlex.join(words)


def _sized(spec: ModelSpec, pool: Pool, notes: list[str]) -> Sized | None:
    """Return the sizer's figures; None, with a note that says why, if they are not known."""
    if spec.engine != "vllm":
        notes.append("Its size is not known: a simulated engine loads no model.")
        return None
    if not spec.source:
        notes.append("The tiny model fits everywhere.")
        return None
    try:
        gpu = pools.gpus_of(pool.name)
    except WorkerError as error:
        notes.append(gettext("Its size is not known: %(reason)s.") % {"reason": error_text.words(error)})
        return None
    quantization = spec.options.quantization
    work = partial(
        sizing.size,
        spec.source,
        gpu=gpu.gpu,
        gpus_per_node=gpu.per_node,
        context_tokens=spec.context_tokens or None,
        kv_dtype="auto" if spec.options.kv_dtype not in sizing.KV_DTYPES else spec.options.kv_dtype,
        quantization=None if quantization == engine_options.AUTO else quantization,
    )
    try:
        return _readers.submit(work).result(WAIT_SECONDS)
    except TooLate:
        notes.append(
            gettext("Its size is not known: the hub did not give its config.json within %(seconds)s s.")
            % {"seconds": f"{WAIT_SECONDS:.0f}"}
        )
    except DoesNotFit as error:
        notes.append(f"{error}")
    except (CannotSize, ModelRefused) as error:
        notes.append(gettext("Its size is not known: %(reason)s") % {"reason": error})
    return None
