"""Check what an engine would be started with, by the engine's own parser, before anything changes."""

from __future__ import annotations

import threading
from pathlib import Path

from catalogue.registry import Description
from workers.engines import argument_check
from workers.engines.driver import EngineSpec
from workers.errors import BadArguments, Refused

#: How long a check waits for another one of this process: each imports vLLM.
TURN_SECONDS = 10.0
_TURN = threading.Lock()


def check(described: Description) -> str:
    """Let the engine's own parser read the command line of a revision; return why it did not, empty if it did.

    Takes as long as vLLM's import: call it outside of transactions. Raises BadArguments; Refused while others are
    checked.
    """
    spec = EngineSpec(
        replica_id="",
        model_path=described.source,
        served_name=described.name,
        host="127.0.0.1",
        port=8000,
        api_key="",
        log_path=Path("/dev/null"),
        context_length_tokens=described.context_length_tokens,
        options=described.options,
        engine_args=described.engine_args,
        version=described.engine_version,
    )
    if not _TURN.acquire(timeout=TURN_SECONDS):
        raise Refused(
            "model", described.name, "the arguments of other engines are being checked", "try again in a minute"
        )
    try:
        checked = argument_check.check(described.engine, spec)
    finally:
        _TURN.release()
    if checked.refusal:
        raise BadArguments(described.engine, checked.refusal)
    return checked.unchecked
