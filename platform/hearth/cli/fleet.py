"""``celery -A hearth fleet …``: look at the fleet and change it from a shell, through the database alone.

It works while no worker runs. Exit status: 0 done; 1 refused, or ``status`` found something not well; 2 wrong
arguments; 69 the database does not answer. Every ``celery`` command imports this module, so nothing heavy is
imported before a command runs.
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
    from hearth.cli.fleet_tables import Listing

T = TypeVar("T")
#: EX_UNAVAILABLE of sysexits.h, which Celery's own commands answer when nobody replied.
UNAVAILABLE = 69
WATCH_SECONDS = 2.0
CLEAR = "\x1b[H\x1b[2J"

HELP = """\
Look at the fleet and change it.

Lists are tables, with --json they are JSON, with --watch they are written again every two seconds (or as many as you
say) until Ctrl-C. Ids may be cut to an end that only one has, as the lists show them. Verbs say how things shall be:
doing one twice does no harm.

\b
Examples:
  celery -A hearth fleet status
  celery -A hearth fleet placeholders --watch
  celery -A hearth fleet replicas --json
  celery -A hearth fleet scale chat 1-4
  celery -A hearth fleet drain n1
"""
#: What lists are for; one sentence each.
LIST_HELP = {
    "status": "Say in short what there is; exit status 1 when something is not well.",
    "pools": "List pools in the order in which they are filled. WARM is placeholders kept of wanted.",
    "nodes": "List nodes, whether their agents answer, and what they have.",
    "slots": "List slots, their health, and who has them.",
    "replicas": "List replicas, their states, and how they were started.",
    "placeholders": "List placeholders, how warm they are, and how soon each can be which model.",
    "deployments": "List deployments: ready of desired replicas, within their range.",
    "decisions": "List what scaling decided, and why. Newest first.",
    "events": "List transitions of replicas, with their reasons. Newest first.",
    "starts": "List how long starts took until the first token, from each level of warmth.",
}
HISTORIES = frozenset({"decisions", "events"})


@click.group(help=HELP, short_help="Look at the fleet and change it.")
def fleet() -> None:
    """Group the commands; see ``HELP``."""


def _add_list(name: str, help_text: str) -> None:
    example = f"celery -A hearth fleet {name} --json"
    history = name in HISTORIES

    @fleet.command(name, help=f"{help_text}\n\n\b\nExample:\n  {example}", short_help=help_text)
    @click.option("--json", "as_json", is_flag=True, help="Write JSON; with --watch one document on each line.")
    @click.option(
        "--watch",
        is_flag=False,
        flag_value=WATCH_SECONDS,
        type=click.FloatRange(min=0.1),
        metavar="[SECONDS]",
        help=f"Write it again every SECONDS ({WATCH_SECONDS:g} unless you say otherwise) until Ctrl-C.",
    )
    @click.option(
        "--last",
        default=20,
        show_default=True,
        type=click.IntRange(1, 1000),
        hidden=not history,
        help="How many lines.",
    )
    def show(as_json: bool, watch: float | None, last: int) -> None:
        _set_up()
        from hearth.cli import fleet_tables

        if watch is not None:
            _watch(lambda: fleet_tables.read(name, last), watch, as_json)
            return
        listing = _guarded(lambda: fleet_tables.read(name, last))
        click.echo(_written(listing, as_json, indent=2))
        sys.exit(0 if listing.well else 1)


def _add_verb(verb: Verb) -> None:
    @fleet.command(
        verb.name, help=f"{verb.help}\n\n\b\nExample:\n  celery -A hearth fleet {verb.example}", short_help=verb.help
    )
    @click.option("--json", "as_json", is_flag=True, help="Write JSON: target, changed, now.")
    def act(as_json: bool, **given: Any) -> None:
        _set_up()
        from dataclasses import asdict

        from tenants import audit

        effect = _guarded(lambda: verb(audit.shell("celery fleet"), given))
        if as_json:
            click.echo(json.dumps(asdict(effect)))
        else:
            click.echo(f"{effect.target} {effect.now}" + ("" if effect.changed else " (no change)"))

    must = len(verb.arguments) - verb.optional
    act.params[:0] = [click.Argument((name,), required=position < must) for position, name in enumerate(verb.arguments)]


def _set_up() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hearth.settings")
    import django

    django.setup()


def _guarded(work: Callable[[], T]) -> T:
    """Return what ``work`` returns; end with one line on stderr and an exit status when it cannot be done."""
    from django.db import DatabaseError, InterfaceError

    from workers.errors import WorkerError
    from workers.fleet.error_text import words

    try:
        return work()
    except WorkerError as error:
        _end(1, words(error))
    except (DatabaseError, InterfaceError) as error:
        _end(UNAVAILABLE, f"the database does not answer: {_first_line(error)}; see `hearth status`")


def _end(status: int, problem: str) -> NoReturn:
    click.echo(f"celery fleet: {problem}", err=True)
    sys.exit(status)


def _watch(read: Callable[[], Listing], seconds: float, as_json: bool) -> None:
    """Write the list again and again until Ctrl-C; a database that is away is said, and waited for."""
    from django.db import DatabaseError, InterfaceError, connection

    try:
        while True:
            try:
                click.echo(
                    (CLEAR if sys.stdout.isatty() else "") + _written(read(), as_json) + ("" if as_json else "\n")
                )
            except (DatabaseError, InterfaceError) as error:
                connection.close()
                click.echo(f"celery fleet: the database does not answer: {_first_line(error)}", err=True)
            time.sleep(seconds)
    except KeyboardInterrupt:
        return


def _written(listing: Listing, as_json: bool, *, indent: int | None = None) -> str:
    return json.dumps(listing.data, indent=indent, default=str) if as_json else listing.text


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


for _name, _text in LIST_HELP.items():
    _add_list(_name, _text)
for _verb in VERBS:
    _add_verb(_verb)
