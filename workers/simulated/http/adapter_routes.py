"""The routes that load and unload LoRA adapters, open where vLLM's are: with LoRA, and if a variable allows it."""

import json
from pathlib import Path
from typing import Any

from aiohttp import web

from workers.simulated.engine.adapter import Adapter
from workers.simulated.http.service import Service
from workers.simulated.requests import field_reader
from workers.simulated.requests.errors import ApiError
from workers.simulated.requests.field_reader import FieldReader

WEIGHTS = "adapter_model.safetensors"


def routes(service: Service) -> list[web.RouteDef]:
    """Return the routes; none unless adapters may be loaded at runtime."""
    if not service.settings.loads_adapters:
        return []

    async def load(request: web.Request) -> web.Response:
        body = await _body(request)
        name, path = body["lora_name"], body["lora_path"]
        if not name or not path:
            raise _invalid("Both 'lora_name' and 'lora_path' must be provided.")
        if name == service.settings.served_name:
            raise _invalid(f"The lora adapter '{name}' conflicts with a served base model.")
        if name in service.adapters and not body["load_inplace"]:
            raise _invalid(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True."
            )
        _check(service, name, Path(path))
        service.adapters[name] = Adapter(name, path)
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(request: web.Request) -> web.Response:
        name = (await _body(request, needs_path=False))["lora_name"]
        if not name:
            raise _invalid("'lora_name' needs to be provided to unload a LoRA adapter.")
        if service.adapters.pop(name, None) is None:
            message = f"The lora adapter '{name}' cannot be found."
            raise ApiError(message, status=404, kind="NotFoundError")
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    return [web.post("/v1/load_lora_adapter", load), web.post("/v1/unload_lora_adapter", unload)]


async def _body(request: web.Request, *, needs_path: bool = True) -> dict[str, Any]:
    body = field_reader.parse(await request.read(), request.headers.get("Content-Type", ""))
    reader = FieldReader(body)
    for name in ("lora_name", "lora_path") if needs_path else ("lora_name",):
        if name not in body:
            reader.missing(name)
    found = {"lora_name": reader.text("lora_name"), "lora_path": reader.text("lora_path")}
    found_inplace = reader.flag("load_inplace")
    reader.finish()
    return {**found, "load_inplace": found_inplace}


def _check(service: Service, name: str, folder: Path) -> None:
    """Raise ApiError for what vLLM's worker refuses: missing files, or a rank that is too large."""
    try:
        found = json.loads((folder / "adapter_config.json").read_bytes())
        is_there = (folder / WEIGHTS).is_file()
    except (OSError, ValueError):
        is_there = False
    if not is_there:
        message = f"Loading lora {name} failed: No adapter found for <path>"
        raise ApiError(message, status=404, kind="NotFoundError")
    rank, most = int(found.get("r", 0)), service.settings.max_lora_rank
    if rank > most:
        raise _refused(f"LoRA rank {rank} is greater than max_lora_rank {most}.")


def _invalid(message: str) -> ApiError:
    return ApiError(message, kind="InvalidUserInput")


def _refused(reason: str) -> ApiError:
    message = (
        f"Call to add_lora method failed: Worker failed with error '{reason}', please check the stack trace above for "
        "the root cause"
    )
    return ApiError(message, status=500, kind="InternalServerError")
