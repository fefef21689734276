"""`hearth deploy` and `model`: further models."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from catalogue.engine_options import MOST_ADAPTERS, MOST_HOST_MEMORY_GIB, MOST_RANK, MOST_STAGES
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table
from hearth.cli.secret import first_line
from workers.engines.driver import DEFAULT_CONTEXT_TOKENS

if TYPE_CHECKING:
    # these need Django
    from workers.model_sources.source import ModelSpec
    from workers.models import Deployment

#: The options that say what is served.
_CONTENT = ("commit", "engine", "task", "engine_args", "pool")
#: Those that hold for a LoRA adapter too.
_OF_ADAPTERS = {"name", "source", "commit", "hub_token", "secret", "tenants", "private"}
#: The largest number that the column stores.
MOST_CONTEXT_TOKENS = 2**31 - 1
#: ``workers.fleet.deployments.MAX_REPLICAS``, which needs Django.
MOST_REPLICAS = 1000
#: ``workers.fleet.deployments.MAX_SLOTS_PER_REPLICA``, likewise.
MOST_SLOTS = 16


def _split(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    """Split the engine's arguments as a shell does."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise click.BadParameter(f"{error} in {text!r}.") from error


class _ContextTokens(click.ParamType[int]):
    """A number of tokens; 0 and ``auto`` are the model's own."""

    name = "tokens"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number. Fails for what is neither a number from 0 on nor ``auto``."""
        if value == "auto":
            return 0
        try:
            tokens = int(value)
        except ValueError:
            tokens = -1
        if not 0 <= tokens <= MOST_CONTEXT_TOKENS:
            self.fail(f"{value!r} is neither auto nor a number from 0 to {MOST_CONTEXT_TOKENS}.", param, ctx)
        return tokens


@click.command(short_help="Serve a further model.")
@click.argument("name")
@click.option("--source", help="Hugging Face id or folder. Default: as before, the tiny model for a new model.")
@click.option(
    "--revision",
    "commit",
    default="",
    metavar="REF",
    help="Branch, tag or commit of a Hugging Face id; the commit that it is now is served. Default: the main branch.",
)
@click.option("--engine", type=click.Choice(("vllm", "simulated")), default="vllm", show_default=True)
@click.option("--task", type=click.Choice(("text", "embeddings")), default="text", show_default=True)
@click.option("--pool", metavar="NAME", help="The pool that runs it. Default: that of this node.")
@click.option("--replicas", type=click.IntRange(0, MOST_REPLICAS), help="Default: as before, 1 for a new model.")
@click.option(
    "--slots-per-replica",
    type=click.IntRange(1, MOST_SLOTS),
    help="Slots of one node that each replica takes, which divides the model among as many GPUs; see `hearth size`. "
    "Default: as before, 1 for a new model.",
)
@click.option(
    "--context-tokens",
    type=_ContextTokens(),
    help="Longest prompt and response together, tokens. 0 or auto: the model's own, as far as it fits into the memory. "
    f"Default: as before, {DEFAULT_CONTEXT_TOKENS} for a new model.",
)
@click.option(
    "--kv-dtype", metavar="NAME", help="Type of the KV cache's values, as fp8; auto: the model's. Default: as before."
)
@click.option(
    "--quantization",
    metavar="NAME",
    help="By what the weights are quantised, as fp8; auto: as their files say. Default: as before.",
)
@click.option(
    "--host-memory-gib",
    type=click.IntRange(0, MOST_HOST_MEMORY_GIB),
    help="Memory of the host for KV blocks that leave the GPUs of a replica, all together. Default: as before, 0.",
)
@click.option(
    "--pipeline-parallel",
    type=click.IntRange(1, MOST_STAGES),
    help="Stages that a replica's layers are divided into, one after another; each has slots / stages GPUs. "
    "Default: as before, 1.",
)
@click.option(
    "--lora-adapters",
    type=click.IntRange(0, MOST_ADAPTERS),
    help="LoRA adapters that one batch may use. Default: as before, 0.",
)
@click.option(
    "--lora-rank",
    type=click.IntRange(1, MOST_RANK),
    help="Largest rank of a LoRA adapter. Default: as before, 16.",
)
@click.option(
    "--engine-version",
    metavar="VERSION",
    help="Version of the engine, as `celery -A hearth fleet nodes` lists those that nodes have; a beginning will do. "
    "Default: as before, for a new model the one that most nodes have.",
)
@click.option(
    "--engine-args",
    default="",
    callback=_split,
    help="Arguments of the engine itself, quoted as for a shell: --engine-args='--dtype float16'. The engine's own "
    "parser checks them first, and imports vLLM for that, which takes ten seconds or more. A parser for tool calls or "
    "reasoning named here replaces the one of the model's family.",
)
@click.option(
    "--require",
    "requires",
    multiple=True,
    metavar="REQUIREMENT",
    help="What a pool must have to get its replicas: gpu_types=H100,H200 or labels=NAME:VALUE,…; repeatable. Empty: "
    "nothing. Default: as before, nothing for a new model.",
)
@click.option("--allow-remote-code", is_flag=True, help="Let --trust-remote-code run the model's own Python code.")
@click.option("--allow-pickle", is_flag=True, help="Load weights that are Python pickles, which can run code.")
@click.option(
    "--hub-token-file",
    "hub_token",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    callback=first_line,
    metavar="FILE",
    help="Token with which a gated or private model is read on the hub: the first line of FILE, - for standard input. "
    "Default: as before.",
)
@click.option(
    "--secret", metavar="NAME", help="Secret with which it is read there: `hearth secret`. Default: as before."
)
@click.option("--private", is_flag=True, help="Show it to no tenant but those of --tenant.")
@click.option(
    "--tenant",
    "tenants",
    multiple=True,
    metavar="SLUG",
    help="Show it to this tenant only; repeatable. Of an adapter: its owner.",
)
@click.pass_context
def deploy(context: click.Context, /, name: str, **_: Any) -> None:
    """Serve a further model, which clients call by NAME.

    Checks the name, the source and whether the weights fit into a slot; then registers a model of the platform and
    keeps replicas of it in the pool of this node, or in --pool. A new model is visible to every tenant unless --private
    or --tenant is given. Its usage is unrated until you set a price; only the tiny model has one. An engine serves text
    or embeddings, never both: --task selects one.

    A folder or a repository with adapter_config.json is a LoRA adapter. Its NAME is base:adapter, after the model whose
    replicas load it. It belongs to --tenant, is private to it, and has a price of its own.

    The same NAME again changes what it serves, if --source is given, and else what the other options name: --replicas 0
    stops it. Options that are left out stay as they are. `hearth model` renames, shares and archives it.

    \b
    Examples:
      hearth deploy qwen --source Qwen/Qwen3-8B --replicas 2
      hearth deploy big --source /models/big --slots-per-replica 8 --pipeline-parallel 2 --kv-dtype fp8
      hearth deploy qwen --context-tokens auto --host-memory-gib 64
      hearth deploy qwen --engine-version 0.33.0
      hearth deploy qwen --require gpu_types=H100,H200 --require labels=net:ib
      hearth deploy qwen:acme-tone --source /adapters/tone --tenant acme
    """
    with on_database(f"{name} is not deployed"):
        if _is_adapter(context):
            _deploy_adapter(context)
            return
        made, spec = deploy_as_typed(context)
        from hearth.provisioning.deploy import price_note
        from workers.fleet.status import inventory

        lacking = inventory.obstacles(made.name)
        unpriced = price_note(made.revision.model.name)
    print(f"{name} is deployed as {made.name}, replicas: {made.min_replicas}.")
    if lacking:
        print(f"{lacking[:1].upper()}{lacking[1:]}.")
    if unpriced:
        print(f"{unpriced}.")
    if spec is not None and (family_args := spec.family_args()):
        print(f"Defaults of its family, which --engine-args can replace: {shlex.join(family_args)}")


def _is_adapter(context: click.Context) -> bool:
    """Return whether the source is a LoRA adapter, or the name that of one."""
    from catalogue.models import Model
    from workers.model_sources import adapters

    given = context.params
    if not given["source"]:
        return Model.objects.filter(name=given["name"]).exclude(base=None).exists()
    return adapters.is_adapter(
        given["name"], given["source"], given["commit"], hub_token=given["hub_token"], secret=given["secret"]
    )


def _deploy_adapter(context: click.Context) -> None:
    from hearth.provisioning.deploy import price_note
    from tenants import audit
    from workers.fleet.status import adapters as adapter_status
    from workers.model_sources import adapters
    from workers.model_sources.adapters import AdapterSpec

    given = context.params
    name, owners = given["name"], given["tenants"]
    typed = {each for each in given if context.get_parameter_source(each) is ParameterSource.COMMANDLINE}
    if other := sorted(typed - _OF_ADAPTERS):
        options = ", ".join(f"--{each.replace('_', '-')}" for each in other)
        base = name.rpartition(":")[0]
        raise click.UsageError(f"{name} is a LoRA adapter, which runs in the replicas of {base}: leave {options} out.")
    if not given["source"]:
        raise click.UsageError(f"{name} is a LoRA adapter, which is replaced as a whole: give --source.")
    if len(owners) > 1:
        raise click.UsageError(
            f"An adapter belongs to one tenant: give one --tenant, then `hearth model share {name}` for others."
        )
    spec = AdapterSpec(
        name=name,
        source=given["source"],
        commit=given["commit"],
        owner=owners[0] if owners else None,
        hub_token=given["hub_token"],
        secret=given["secret"],
    )
    revision = adapters.deploy_spec(audit.shell("hearth deploy"), spec, print)
    print(f"{name} is deployed as revision {revision.digest[:12]}: {adapter_status.words(revision.model)}.")
    if unpriced := price_note(name):
        print(f"{unpriced}.")


def deploy_as_typed(context: click.Context) -> tuple[Deployment, ModelSpec | None]:
    """Deploy what the command line says; return the deployment and the model, None if what is served stays."""
    from hearth.provisioning import deploy as deployment  # its models need Django
    from portal.fleet import deploying
    from tenants import audit
    from workers.fleet.model_options import OptionChange
    from workers.model_sources.source import ModelSpec, is_tiny
    from workers.serving import pool_requirements
    from workers.weights import hub_tokens, secrets

    given = dict(context.params)
    words = given.pop("requires")
    requires = pool_requirements.parse(" ".join(words)) if words else None
    name, replicas, source, pool = (given.pop(each) for each in ("name", "replicas", "source", "pool"))
    # Raw arguments are given with the source: without it those that are deployed stay.
    names = [each.name for each in fields(OptionChange) if each.name != "engine_args"]
    change = OptionChange(**{each: given.pop(each) for each in names})
    private, shown_to = given.pop("private"), given.pop("tenants")
    tenants = shown_to if private or shown_to else None
    actor, found = audit.shell("hearth deploy"), deploying.served(name)
    if found is not None and source is None:
        if not any(context.get_parameter_source(each) is ParameterSource.COMMANDLINE for each in _CONTENT):
            if (named := given.pop("secret")) is not None:
                secrets.use(actor, found.revision.model, named)
            if (token := given.pop("hub_token")) is not None:
                hub_tokens.store(actor, found.revision.model, token)
            return deployment.change_options(
                actor, found, replicas=replicas, change=change, tenants=tenants, requires=requires, warn=print
            ), None
        if not is_tiny(found.revision.source):
            raise click.UsageError(
                f"{name} serves {found.revision.source}, and what it serves is replaced as a whole: give --source, too."
            )
    spec = ModelSpec(name=name, tenants=tenants, source=source or "", **given)
    wanted = deployment.with_options(spec, found, change)
    return deployment.deploy(actor, wanted, replicas, pool=pool, requires=requires, warn=print), spec


@click.group(short_help="List, rename, share and archive models.")
def model() -> None:
    """List models and change what `hearth deploy` made. NAME is a model's name or an alias.

    \b
    Examples:
      hearth model list
      hearth model rename qwen qwen3-8b
      hearth model alias qwen3-8b default
      hearth model share qwen3-8b --tenant acme --tenant globex
      hearth model secret llama --file token.txt
      hearth model retire qwen3-8b --on 2027-03-31 --replacement qwen4-8b
      hearth model archive qwen3-8b
    """


@model.command("list", short_help="List the models.")
@click.option("--all", "everything", is_flag=True, help="List archived models too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_models(everything: bool, as_json: bool) -> None:
    """List the models with their replicas and who sees them."""
    with on_database("The models cannot be listed"):
        from portal.fleet import model_list

        rows = model_list.read(archived=everything)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    cells = [
        (
            row.name,
            row.owner,
            row.shown_visibility,
            f"{row.ready}/{row.desired}",
            ", ".join(row.aliases),
            "set" if row.priced else "none",
            row.state,
        )
        for row in rows
    ]
    print(table(("MODEL", "OWNER", "VISIBLE TO", "READY", "ALIASES", "PRICE", "STATE"), cells))
    for row in rows:
        if row.trouble:
            print(f"{row.name} {row.trouble}.")


@model.command(short_help="Stop serving a model and hide it.")
@click.argument("name")
def archive(name: str) -> None:
    """Hide a model from every tenant and stop its replicas. Usage and prices stay; `restore` undoes it."""
    _change(name, "is archived", archived=True)


@model.command(short_help="Serve an archived model again.")
@click.argument("name")
def restore(name: str) -> None:
    """Serve an archived model again, with the replicas that it had."""
    _change(name, "is served again", archived=False)


@model.command(short_help="Announce when a model is refused, and what to call instead.")
@click.argument("name")
@click.option(
    "--on",
    "retires_at",
    type=click.DateTime(("%Y-%m-%d", "%Y-%m-%dT%H:%M")),
    help="The moment in UTC from which on its requests are refused.",
)
@click.option("--replacement", default="", metavar="MODEL", help="What to call instead: a model, or an alias of one.")
@click.option("--never", is_flag=True, help="It does not retire.")
def retire(name: str, retires_at: datetime | None, replacement: str, never: bool) -> None:
    """Announce the date from which on requests for a model are refused, in every answer until then.

    Its replicas run on until `archive` ends them.
    """
    if (retires_at is not None) + never != 1:
        raise click.UsageError("Give one of --on and --never.")
    moment = None if retires_at is None else retires_at.replace(tzinfo=UTC)
    with on_database("Nothing was changed"):
        from portal.fleet import model_changes
        from tenants import audit

        retirement = model_changes.Retirement(retires_at=moment, replacement=replacement)
        wanted = model_changes.ModelChange(retirement=retirement)
        model_changes.change(audit.shell("hearth model"), name, wanted, warn=print)
    print(f"{name} {'does not retire' if moment is None else f'retires at {moment:%Y-%m-%d %H:%M} UTC'}.")


@model.command(short_help="Give a model another name.")
@click.argument("name")
@click.argument("new_name")
def rename(name: str, new_name: str) -> None:
    """Give a model another name. Its old name becomes an alias; a rollout replaces its replicas, which serve meanwhile.

    Keys, limits, prices and purges follow. `unalias` ends the old name.
    """
    _change(name, f"is now {new_name}; the old name is an alias", name=new_name)


@model.command(short_help="Let clients call a model by a further name.")
@click.argument("name")
@click.argument("alias")
@click.option("--move", is_flag=True, help="Take it from the model that has it now.")
def alias(name: str, alias: str, move: bool) -> None:
    """Let clients call a model by ALIAS too. Usage is recorded under the model's own name."""
    if move:
        _change(name, f"can be called {alias}", take_alias=alias)
        return
    _change_aliases(name, f"can be called {alias}", lambda present: {*present, alias})


@model.command(short_help="Remove an alias.")
@click.argument("alias")
def unalias(alias: str) -> None:
    """Remove an alias of a model."""
    _change_aliases(alias, "is removed", lambda present: present - {alias}, known=alias)


@model.command(short_help="Choose the tenants that see a model.")
@click.argument("name")
@click.option("--public", is_flag=True, help="Show it to every tenant.")
@click.option("--private", is_flag=True, help="Show it to its owner only.")
@click.option("--tenant", "tenants", multiple=True, metavar="SLUG", help="Show it to this tenant too; repeatable.")
def share(name: str, public: bool, private: bool, tenants: tuple[str, ...]) -> None:
    """Choose the tenants that see a model: all of them, its owner alone, or its owner and those of --tenant."""
    if public + (private or bool(tenants)) != 1:
        raise click.UsageError("Give one of --public, --private, or one --tenant or more.")
    seen_by = "every tenant" if public else ", ".join(tenants) or "its owner alone"
    _change(name, f"is visible to {seen_by}", visibility="public" if public else "private", tenants=tenants)


@model.command(short_help="Set the token that a gated model needs on the hub.")
@click.argument("name")
@click.option(
    "--file",
    "token",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    callback=first_line,
    metavar="FILE",
    help="Read the token from the first line of FILE, - for standard input, instead of the terminal.",
)
@click.option(
    "--use", "used", metavar="SECRET", help="Use this secret of `hearth secret list` instead of one of its own."
)
@click.option("--remove", is_flag=True, help="Use none.")
def secret(name: str, token: str | None, used: str | None, remove: bool) -> None:
    """Set the token with which nodes read a gated or private model on the hub. It is stored sealed and never shown.

    It becomes a secret of this model's own, named hub-NAME. Only the process that fetches the model's files gets it. A
    fetch that was refused begins again at once.
    """
    if remove + (token is not None) + (used is not None) > 1:
        raise click.UsageError("Give one of --file, --use and --remove, not both.")
    if used is not None:
        _change(name, f"uses the secret {used}", secret=used)
        return
    if remove:
        _change(name, "has no token for the hub", hub_token="")
        return
    text = token or click.prompt("Token", hide_input=True, err=True)
    _change(name, "has a new token for the hub", hub_token=text)


def _change(model_name: str, done: str, **change: Any) -> None:
    with on_database("Nothing was changed"):
        from portal.fleet import model_changes
        from tenants import audit

        model_changes.change(audit.shell("hearth model"), model_name, model_changes.ModelChange(**change), warn=print)
    print(f"{model_name} {done}.")


def _change_aliases(name: str, done: str, wanted: Callable[[set[str]], set[str]], known: str = "") -> None:
    with on_database("Nothing was changed"):
        from portal.fleet import model_changes
        from tenants import audit

        model_changes.change_aliases(audit.shell("hearth model"), name, wanted, known=known)
    print(f"{name} {done}.")
