"""The report that `hearth gpu-check` leaves on a node, for the agent that sends it on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import msgspec

from workers.devices import gpu_report

log = logging.getLogger(__name__)


class GpuCheckFile:
    """The report in the data directory of a node."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / gpu_report.FILE
        self._seen: tuple[int, int] | None = None
        self._confirmed: tuple[int, int] | None = None

    def changed(self) -> dict[str, Any] | None:
        """Return the report as it is stored with the node, empty without one; None if it is as last confirmed.

        None, too, while a run goes on: what the run before it found still counts.
        """
        self._seen = self._state()
        if self._seen == self._confirmed:
            return None
        found = self._read() if self._seen != (0, 0) else {}
        return found if found.get("ended", True) else None

    def confirm(self) -> None:
        """Note that what the last call returned is stored."""
        self._confirmed = self._seen

    def _state(self) -> tuple[int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0)
        return (found.st_mtime_ns, found.st_size)

    def _read(self) -> dict[str, Any]:
        try:
            with self._path.open("rb") as file:
                report = gpu_report.parse(file.read(gpu_report.MOST_BYTES))
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("%s is not read: %s", self._path, error)
            return {}
        return cast(dict[str, Any], msgspec.json.decode(msgspec.json.encode(report)))
