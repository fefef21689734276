"""What a check of a deployment reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of an instance that the public can reach, and its remedy, each a sentence."""

    problem: str
    remedy: str
