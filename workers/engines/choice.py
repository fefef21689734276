"""Choose the driver of an engine by the engine's name; list the versions of all of them."""

from __future__ import annotations

from workers.engines.driver import EngineDriver, named_version
from workers.engines.errors import UnknownEngine
from workers.engines.simulated import SimulatedDriver
from workers.engines.vllm import VllmDriver

_DRIVERS: tuple[EngineDriver, ...] = (VllmDriver(), SimulatedDriver())


def driver_for(name: str) -> EngineDriver:
    """Return the driver of engine ``name`` ("vllm" or "simulated"). Raises UnknownEngine."""
    for driver in _DRIVERS:
        if driver.name == name:
            return driver
    raise UnknownEngine(name, tuple(driver.name for driver in _DRIVERS))


def installed_versions() -> tuple[str, ...]:
    """Return the versions of all engines that this machine has, each as ``named_version`` writes it."""
    return tuple(named_version(driver.name, version) for driver in _DRIVERS for version in driver.versions())
