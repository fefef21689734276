"""Load an adapter into an engine, try it, and unload it, over HTTP. No Django here."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

from workers.agent.probes.http_probe import Prober, request
from workers.serving.canary import CanaryTarget
from workers.weights.folder import folder_digest

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
#: An adapter is read from disk; a busy engine takes it between two steps.
LOAD_TIMEOUT_SECONDS = 120.0
CANARY_TIMEOUT_SECONDS = 120.0
#: vLLM wraps the reason of its worker in these words.
_BEFORE, _AFTER = "Worker failed with error '", "', please check the stack trace"


class CannotLoad(Exception):
    """The engine does not serve the adapter; the text says why."""


def load(prober: Prober, target: CanaryTarget, folder: Path, digest: str) -> None:
    """Load the adapter that ``target`` names from a folder, and let it write one token.

    ``digest``: of the folder's files when it was deployed; empty if a commit identifies them. An adapter that the
    engine has already is tried alone. Raises CannotLoad.
    """
    if digest and _digest_of(folder) != digest:
        raise CannotLoad(f"the files in {folder} on this node are missing, or not those that were deployed")
    status, reason = _post(target, LOAD, {"lora_name": target.engine_name, "lora_path": str(folder)})
    if status != 200 and "already been loaded" not in reason:
        raise CannotLoad(reason or f"{LOAD} returned {status}")
    result = prober.canary(target, CANARY_TIMEOUT_SECONDS)
    if not result.answered:
        unload(target)
        raise CannotLoad(f"canary: {result.problem}")


def unload(target: CanaryTarget) -> None:
    """Unload the adapter; requests that run go on. An engine that does not have it is fine. Raises CannotLoad."""
    status, reason = _post(target, UNLOAD, {"lora_name": target.engine_name})
    if status not in {200, 404}:
        raise CannotLoad(reason or f"{UNLOAD} returned {status}")


def _digest_of(folder: Path) -> str:
    try:
        return folder_digest(folder)
    except OSError:  # somebody changes it now
        return ""


def _post(target: CanaryTarget, path: str, body: dict[str, str]) -> tuple[int, str]:
    """Return the status and the engine's reason, empty for a success. Raises CannotLoad if it does not answer."""
    headers = {"content-type": "application/json"}
    raw = json.dumps(body).encode()
    try:
        status, answer = request(target, "POST", path, timeout_seconds=LOAD_TIMEOUT_SECONDS, body=raw, headers=headers)
    except (OSError, http.client.HTTPException) as error:
        raise CannotLoad(f"the engine does not answer: {type(error).__name__}") from error
    if status == 200:
        return status, ""
    try:
        reason = str(json.loads(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        reason = answer[:300].decode(errors="replace")
    return status, reason.partition(_BEFORE)[2].partition(_AFTER)[0] or reason
