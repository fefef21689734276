"""``celery -A hearth fleet …``: show and change the fleet from a shell, through the database alone.

Works without any worker. Exit status: 0 done; 1 refused, or ``status`` found a problem; 2 wrong arguments; 69 the
database does not respond. Every ``celery`` command imports this module, so Django is only imported when a command runs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from workers.fleet.verbs import VERBS, Verb

if TYPE_CHECKING:
    from hearth.cli.output.fleet_tables import Listing

T = TypeVar("T")
#: EX_UNAVAILABLE of sysexits.h, which Celery's own commands return when no worker replied.
UNAVAILABLE = 69
WATCH_SECONDS = 2.0
CLEAR = "\x1b[H\x1b[2J"

HELP = """\
Show the fleet and change it.

Lists are tables, or JSON with --json. With --watch they are printed again every two seconds, or the seconds given,
until Ctrl-C. The end of an id is enough where it is unique, as in the lists. Verbs set a state: to repeat one does no
harm.

\b
Examples:
  celery -A hearth fleet status
  celery -A hearth fleet placeholders --watch
  celery -A hearth fleet replicas --json
  celery -A hearth fleet scale chat 1-4
  celery -A hearth fleet drain n1
"""
#: The help of each list.
LIST_HELP = {
    "status": "Summarise the fleet; exit status 1 if there is a problem.",
    "pools": "List pools in the order in which they are filled. WARM: placeholders, current/desired.",
    "nodes": "List nodes, whether their agents respond, and what they run.",
    "slots": "List slots, their health, what their devices do, and what occupies them.",
    "replicas": "List replicas, their states, and how they were started.",
    "placeholders": "List placeholders, their warmth, and how soon each can become which model.",
    "placeholder-costs": "List what placeholders cost and saved, by day and pool. Newest first; --last DAYS.",
    "deployments": "List deployments: ready and desired replicas, and their range.",
    "load-targets": "List how many tokens in flight a replica should have, by pool, and what that was learned from.",
    "weights": "List models' files on nodes: what is there, what is being fetched, and what cannot be fetched.",
    "staged": "List models' files that nodes keep in the page cache: how much is there, and why it is not.",
    "decisions": "List decisions of scaling, with their reasons. Newest first.",
    "events": "List transitions of replicas, with their reasons. Newest first.",
    "targets": "List what Prometheus scrapes: roles, and engines through their agents.",
    "starts": "List how long starts took until the first token, by level of warmth.",
    "rollout status": "List rollouts: how far they are, what they wait for, why they ended so. Newest first.",
}
HISTORIES = frozenset({"decisions", "events", "placeholder-costs", "rollout status"})


@click.group(help=HELP, short_help="Show the fleet and change it.")
def fleet() -> None:
    """Show the fleet and change it; see ``HELP``."""


@fleet.group(short_help="Follow, pause, resume and undo rollouts.")
def rollout() -> None:
    """Follow a change of what a deployment serves, pause it, let it go on, undo it."""


@fleet.group(short_help="Set up pools.")
def pool() -> None:
    """Make a pool, and set its order, region, water marks, GPU type, labels and cost."""


def _place(words: str) -> tuple[click.Group, str]:
    """Return the group of a command, and its name there."""
    group, _, name = words.rpartition(" ")
    return {"": fleet, "rollout": rollout, "pool": pool}[group], name


def _add_list(name: str, help_text: str) -> None:
    group, command = _place(name)
    example = f"celery -A hearth fleet {name} --json"
    history = name in HISTORIES

    @group.command(command, help=f"{help_text}\n\n\b\nExample:\n  {example}", short_help=help_text)
    @click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch one document per line.")
    @click.option(
        "--watch",
        is_flag=False,
        flag_value=WATCH_SECONDS,
        type=click.FloatRange(min=0.1),
        metavar="[SECONDS]",
        help=f"Print again every SECONDS until Ctrl-C. [{WATCH_SECONDS:g}]",
    )
    @click.option(
        "--last",
        default=20,
        show_default=True,
        type=click.IntRange(1, 1000),
        hidden=not history,
        help="Number of days." if name == "placeholder-costs" else "Number of lines.",
    )
    def show(as_json: bool, watch: float | None, last: int) -> None:
        _set_up()
        from hearth.cli.output import fleet_tables

        if watch is not None:
            _watch(lambda: fleet_tables.read(name, last), watch, as_json)
            return
        listing = _guarded(lambda: fleet_tables.read(name, last))
        click.echo(_format(listing, as_json, indent=2))
        sys.exit(0 if listing.well else 1)


def _add_verb(verb: Verb) -> None:
    group, command = _place(verb.words)

    @group.command(
        command,
        help=f"{verb.summary}\n\n{verb.effect}\n\n\b\nExample:\n  celery -A hearth fleet {verb.example}",
        short_help=verb.summary,
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON: target, changed, now.")
    def act(as_json: bool, **given: Any) -> None:
        _set_up()
        from dataclasses import asdict

        from tenants import audit

        effect = _guarded(lambda: verb.execute(audit.shell("celery fleet"), given))
        if as_json:
            click.echo(json.dumps(asdict(effect)))
        else:
            click.echo(f"{effect.target} {effect.now}" + ("" if effect.changed else " (no change)"))

    required, last = len(verb.arguments) - verb.optional, len(verb.arguments) - 1
    act.params[:0] = [
        click.Argument((name,), required=place < required, nargs=-1 if verb.several and place == last else 1)
        for place, name in enumerate(verb.arguments)
    ]


def _set_up() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hearth.settings")
    import django

    django.setup()


def _guarded(work: Callable[[], T]) -> T:
    """Return the result of ``work``; if it fails, print one line on standard error and exit."""
    from django.db import DatabaseError, InterfaceError

    from workers.errors import WorkerError
    from workers.fleet.error_text import words

    try:
        return work()
    except WorkerError as error:
        _fail(1, words(error))
    except (DatabaseError, InterfaceError) as error:
        _fail(UNAVAILABLE, f"the database does not respond: {_first_line(error)}; see `hearth status`")


def _fail(status: int, problem: str) -> NoReturn:
    click.echo(f"celery fleet: {problem}", err=True)
    sys.exit(status)


def _watch(read: Callable[[], Listing], seconds: float, as_json: bool) -> None:
    """Print the list repeatedly until Ctrl-C; while the database is unavailable print that, and try again."""
    from django.db import DatabaseError, InterfaceError, connection

    try:
        while True:
            try:
                click.echo(
                    (CLEAR if sys.stdout.isatty() else "") + _format(read(), as_json) + ("" if as_json else "\n")
                )
            except (DatabaseError, InterfaceError) as error:
                connection.close()
                click.echo(f"celery fleet: the database does not respond: {_first_line(error)}", err=True)
            time.sleep(seconds)
    except KeyboardInterrupt:
        return


def _format(listing: Listing, as_json: bool, *, indent: int | None = None) -> str:
    return json.dumps(listing.data, indent=indent, default=str) if as_json else listing.text


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


@fleet.command(short_help="Show the end of the log of a replica's engines.")
@click.argument("replica")
@click.option("--lines", default=200, show_default=True, type=click.IntRange(1, 1000), help="Number of lines.")
def logs(replica: str, lines: int) -> None:
    """Show the end of the log of a replica's engines, from whichever node.

    Its node's agent reads it; if that does not answer, what was stored when an engine of it failed last. Prompts, token
    ids and keys are left out. Exit status 1 if there is no log.

    \b
    Example:
      celery -A hearth fleet logs 5d0c1f2e --lines 50
    """
    _set_up()
    from workers.engines import engine_log
    from workers.fleet import lookup
    from workers.fleet.status import engine_logs

    found = _guarded(lambda: engine_logs.read(lookup.replica(replica)))
    if found.problem:
        click.echo(f"celery fleet: {found.problem}", err=True)
    if not found.text:
        _fail(1, "there is no log")
    if found.event_id is not None:
        click.echo(f"celery fleet: stored when an engine failed, {found.at:%Y-%m-%dT%H:%M:%SZ}", err=True)
    click.echo(engine_log.last_lines(found.text, lines))


for _name, _text in LIST_HELP.items():
    _add_list(_name, _text)
for _verb in VERBS.values():
    _add_verb(_verb)
