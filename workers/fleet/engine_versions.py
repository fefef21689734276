"""Which versions of engines the nodes have, which one a new model gets, and what needs one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from django.db.models import F, Q
from django.db.models.functions import Now

from catalogue.models import ModelRevision
from tenants.errors import BadName
from workers.engines import environment
from workers.engines.driver import named_version
from workers.models import Deployment, Node, Pool, Replica, Rollout

#: What somebody can do about a version that a node lacks.
REMEDY = "run `hearth engine install` there, with --lock if it is not the checkout's"
_ENDED = (Replica.State.STOPPED, Replica.State.FAILED)


def on_nodes(engine: str, pools: Iterable[Pool] | None = None) -> Counter[str]:
    """Count the live nodes, of these pools or of all, that have each version of an engine."""
    rows = Node.objects.filter(lease_expires_at__gt=Now(), engines_epoch=F("epoch"))
    if pools is not None:
        rows = rows.filter(pool__in=list(pools))
    prefix = named_version(engine, " ").rstrip() + " "
    found: Counter[str] = Counter()
    for engines in rows.order_by("name").values_list("engines", flat=True):
        found.update(each.removeprefix(prefix) for each in engines if each.startswith(prefix))
    return found


def for_new_model(engine: str, pools: Iterable[Pool]) -> str:
    """Return the version that most nodes of the pools have, of several the last installed; empty if there is none."""
    counted = on_nodes(engine, pools)
    return max(reversed(counted), key=lambda version: counted[version], default="")


def resolve(engine: str, asked: str) -> str:
    """Return the version that ``asked`` names: in full, or by a beginning that one of the nodes' versions has.

    A full name is taken as it is, because its nodes may be yet to come. Raises BadName.
    """
    known = sorted(on_nodes(engine))
    if asked in known or (engine == "vllm" and environment.VERSION.fullmatch(asked)):
        return asked
    fitting = [each for each in known if asked and each.startswith(asked)]
    if len(fitting) != 1:
        listed = ", ".join(fitting or known) or "none"
        raise BadName("engine version", asked, f"one that a node has ({listed}), or the full name of one to come")
    return fitting[0]


def lacking(versions: Iterable[str], nodes: Mapping[str, Collection[str]]) -> str:
    """Return which nodes lack a version, named as nodes report it, and what to do; empty if none does.

    ``nodes`` are the versions that each has.
    """
    told = []
    for version in dict.fromkeys(filter(None, versions)):
        names = [name for name, engines in nodes.items() if version not in engines]
        if names:
            told.append(f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no {version}")
    return f"{'; '.join(told)}: {REMEDY}" if told else ""


def needed_by(node: str, engine: str, version: str, *, is_default: bool) -> list[str]:
    """Return what needs a version of an engine on a node, as ``deployment chat``; empty if nothing does.

    ``is_default``: revisions without a version run with it there.
    """
    versions = (version, "") if is_default else (version,)
    revisions = ModelRevision.objects.filter(engine=engine, engine_version__in=versions)
    there = Deployment.objects.filter(archived_at=None, pools__nodes__name=node)
    serving = there.filter(revision__in=revisions)
    rolling = Rollout.objects.filter(finished_at=None, deployment__in=there).filter(
        Q(revision__in=revisions) | Q(earlier_revision__in=revisions)
    )
    running = Replica.objects.filter(node__name=node, revision__in=revisions).exclude(state__in=_ENDED)
    names = {
        *(f"deployment {name}" for name in serving.values_list("name", flat=True)),
        *(f"the rollout of {name}" for name in rolling.values_list("deployment__name", flat=True)),
        *(f"a replica of {name}" for name in running.values_list("deployment__name", flat=True)),
    }
    return sorted(names)
