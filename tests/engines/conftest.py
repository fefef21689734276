"""Every conformance test runs against both engines: one process of each kind serves the whole session."""

import random
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from catalogue.engine_options import EngineOptions
from tests.engines.replica import Client, Replica, running
from workers.engines import environment
from workers.engines.driver import EMBEDDING_ARGS, TINY_MODEL_ARGS

#: Slow enough that a long answer can be cut short.
SIMULATED_SPEED = ("--decode-tokens-per-second", "400", "--prefill-tokens-per-second", "50000")


@pytest.fixture(
    scope="session", params=["simulated", pytest.param("vllm", marks=pytest.mark.real_engine)], name="replica"
)
def _replica(request: pytest.FixtureRequest) -> Iterator[Replica]:
    kind: str = request.param
    if kind == "vllm" and environment.default() is None:
        pytest.skip("the engine environment is not installed: python -m workers.engines.environment")
    arguments = (*TINY_MODEL_ARGS, *(SIMULATED_SPEED if kind == "simulated" else ()))
    with running(kind, *arguments, options=EngineOptions(lora_adapters=2)) as replica:
        yield replica


@pytest.fixture(
    scope="session",
    params=["simulated", pytest.param("vllm", marks=[pytest.mark.real_engine, pytest.mark.long])],
    name="embedder",
)
def _embedder(request: pytest.FixtureRequest) -> Iterator[Replica]:
    """Start one engine of each kind that serves embeddings, for the few tests of those."""
    kind: str = request.param
    if kind == "vllm" and environment.default() is None:
        pytest.skip("the engine environment is not installed: python -m workers.engines.environment")
    with running(kind, *EMBEDDING_ARGS) as replica:
        yield replica


@pytest.fixture(name="client")
async def _client(replica: Replica) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield Client(replica, session)


@pytest.fixture(name="salt")
def _salt() -> str:
    """Return a salt no other test uses: a fresh prefix cache on a shared engine."""
    return f"salt-{random.getrandbits(64):x}"


@pytest.fixture(name="prompt")
def _prompt() -> list[int]:
    """Return a hundred token ids of the tiny model: three full blocks and four tokens."""
    return list(range(300, 400))
