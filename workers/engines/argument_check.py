"""Check an engine's command line with the engine's own parser, in the engine's environment. Nothing is started."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass

from workers.engines.choice import driver_for
from workers.engines.driver import EngineSpec
from workers.engines.errors import EngineUnavailable

#: vLLM's parser imports vLLM first, which takes seconds, and much longer on a busy machine with cold disks.
PARSER_TIMEOUT_SECONDS = 180.0
#: The exit status of argparse when it refuses a program's arguments.
REFUSED_STATUS = 2
#: The longest part of a parser's sentence that is kept: choices of an option may be very many.
LONGEST_SENTENCE = 1000
_REFUSAL = re.compile(r"^[^\s:][^:\n]*: error: ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """``refusal``: the parser's own sentence. ``unchecked``: why no parser ran. Both empty: accepted."""

    refusal: str = ""
    unchecked: str = ""


def check(engine: str, spec: EngineSpec) -> Checked:
    """Let the parser of ``engine`` read the command line that ``spec`` would be started with. Raises UnknownEngine."""
    try:
        command = driver_for(engine).parser(spec)
    except EngineUnavailable as error:
        return Checked(unchecked=error.reason)
    try:
        done = subprocess.run(
            command.argv,
            env=command.environment(os.environ),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PARSER_TIMEOUT_SECONDS,
            check=False,
        )
    except OSError as error:
        return Checked(unchecked=f"its parser cannot be run: {error.strerror or error}")
    except subprocess.TimeoutExpired:
        return Checked(unchecked=f"its parser gave no answer within {PARSER_TIMEOUT_SECONDS:.0f} s")
    if done.returncode == REFUSED_STATUS and (sentence := refusal_in(done.stderr)):
        return Checked(refusal=sentence)
    if done.returncode != 0:
        return Checked(unchecked=f"its parser ended with status {done.returncode}: {_last_line(done.stderr)}")
    return Checked()


def refusal_in(output: str) -> str:
    """Return what argparse said last in a program's output, on one line; empty if it refused nothing."""
    found = list(_REFUSAL.finditer(output))
    return " ".join(output[found[-1].end() :].split())[:LONGEST_SENTENCE] if found else ""


def _last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1][:LONGEST_SENTENCE] if lines else "no output"
