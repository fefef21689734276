"""The memory of known GPUs, and how far they are filled."""

from __future__ import annotations

from workers.sizing.errors import CannotSize

GIB = 1 << 30

#: Memory in GiB that the driver reports, by the name that operators use.
KNOWN = {
    "T4": 15,
    "L4": 22.5,
    "A10": 22.5,
    "A10G": 22.5,
    "RTX4090": 24,
    "RTX5090": 31.8,
    "V100": 32,
    "A100-40": 40,
    "L40S": 45,
    "A6000": 48,
    "A100": 80,
    "H100": 80,
    "RTXPRO6000": 95.6,
    "GH200": 96,
    "H200": 141,
    "B200": 180,
    "MI300X": 192,
    "B300": 275,
}


def type_name(name: str) -> str:
    """Return the name of a GPU in one spelling: ``H100`` for ``nvidia h100``."""
    return "".join(name.upper().split()).removeprefix("NVIDIA").removesuffix("GB").removesuffix("GIB")


def memory_bytes(name: str) -> int:
    """Return the memory of a GPU by its name, or of a number of GiB such as ``48``. Raises CannotSize."""
    wanted = type_name(name)
    if wanted in KNOWN:
        return int(KNOWN[wanted] * GIB)
    try:
        size = float(wanted)
    except ValueError:
        raise CannotSize(f"{name!r} is no known GPU. Give its memory in GiB, or one of {', '.join(KNOWN)}.") from None
    if not 1 <= size <= 10_000:
        raise CannotSize(f"A GPU has 1 to 10,000 GiB, not {name}.")
    return int(size * GIB)
