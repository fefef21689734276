"""Run every command of `hearth` in a process of its own that has loaded nothing but the command line; print faults.

Tests run in a process in which Django is set up, and so do not notice a command that imports a model before it is. Here
each command runs without a database up to its first query. A fork costs less than a start of Python.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import click

from hearth.cli.main import hearth

#: They start, stop or replace something, or run for long.
LEFT_OUT = frozenset({"up", "role", "restore", "engine install", "gpu-check", "measure-routing", "audit-isolation"})
ID = str(UUID(int=7))
#: What a value looks like, by its kind or by the parameter's name.
VALUES = {"month": "2026-01", "uuid": ID, "datetime": "2026-01-02", "amount": "1", "request": ID, "entry": ID}
#: What a command of these needs besides the parameters that are always required.
FURTHER = {
    "account set": ["--city", "x"],
    "apply": ["--schema"],
    "credit correct": ["--give", "1"],
    "explain-route": [ID],
    "invoice credit": ["--rest"],
    "model retire": ["--never"],
    "model share": ["--public"],
    "plan assign": ["--none"],
    "plan preview": ["x"],
    "plan set": ["--file", os.devnull],
    "size": ["--gpu", "H100"],
    "webhook replay": ["--delivery", ID],
}
MOST_SECONDS = 60


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command that is no group, with its name in words."""
    if isinstance(command, click.Group):
        for name, each in sorted(command.commands.items()):
            yield from leaves(each, (*path, name))
    else:
        yield path, command


def arguments(command: click.Command, file: Path) -> list[str]:
    """Return an argument for each parameter that the command needs."""
    found = []
    for each in command.params:
        if not each.required:
            continue
        if isinstance(each, click.Option):
            found.append(each.opts[0])
        if not (isinstance(each, click.Option) and each.is_flag):
            found.append(_value(each, file))
    return found


def _value(parameter: click.Parameter, file: Path) -> str:
    kind = parameter.type
    if isinstance(kind, click.Choice):
        return str(next(iter(kind.choices)))
    if isinstance(kind, click.File | click.Path):
        return str(file)
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        return str(max(1, int(getattr(kind, "min", None) or 0)))
    return VALUES.get(kind.name) or VALUES.get(str(parameter.name), "x")


def fault(words: tuple[str, ...], given: list[str]) -> str | None:
    """Run one command in a fork, without its output; return how it failed, other than by an exit status below 3."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(MOST_SECONDS)
        silent = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1):
            os.dup2(silent, descriptor)
        os.dup2(writing, 2)
        os.close(reading)
        status = 3
        try:
            hearth([*words, *given], prog_name="hearth")
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as output:
        text = output.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status in {0, 1} and "Traceback" not in text:
        return None
    return f"hearth {shlex.join([*words, *given])}: exit status {status}\n{text[-2000:]}"


def main() -> None:
    """Run all commands, or those of the groups that are named, and print how many ran and the faults as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "file"
        file.write_text("{}\n")
        ran, faults = 0, []
        chosen = sys.argv[1:]
        for words, command in leaves(hearth):
            if " ".join(words) in LEFT_OUT or (chosen and words[0] not in chosen):
                continue
            ran += 1
            given = [*arguments(command, file), *FURTHER.get(" ".join(words), ())]
            if found := fault(words, given):
                faults.append(found)
        print(json.dumps({"ran": ran, "faults": faults}))


if __name__ == "__main__":
    main()
