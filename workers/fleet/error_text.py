"""The errors of this room in words: what was wrong, and what is allowed."""

from __future__ import annotations

from workers.errors import (
    Ambiguous,
    BadArguments,
    BadCount,
    BadValue,
    Conflict,
    ModelRefused,
    NotFound,
    Refused,
    Superseded,
    WorkerError,
)


def words(error: WorkerError) -> str:
    """Return one line, without a full stop."""
    match error:
        case NotFound(kind, name, known):
            there = f"; there is {', '.join(known)}" if known else "; there is none"
            text = f"there is no {kind} {name!r}{there}"
        case Ambiguous(kind, name, candidates):
            text = f"several {kind} ids end with {name!r}: {', '.join(candidates)}"
        case BadCount(asked, allowed, "replicas at most"):
            text = f"“at most {asked} replicas” is not allowed: use {allowed}"
        case BadCount(asked, allowed, what):
            text = f"{asked} {what} are not allowed: use {allowed}"
        case BadValue(what, asked, allowed):
            text = f"{asked!r} is not a valid {what}: use {allowed}"
        case BadArguments(engine, sentence):
            text = f"{engine} refuses the arguments: {sentence}"
        case Refused(kind, name, why, instead):
            text = f"{kind} {name}: {why}; {instead}"
        case Conflict(kind, name, field, found, asked):
            text = f"the {field} of {kind} {name!r} is {found}, not {asked}"
        case Superseded(node, epoch):
            text = f"another agent took over node {node!r} after epoch {epoch}"
        case ModelRefused():
            text = str(error).removesuffix(".")
        case _:
            text = str(error)
    return text
