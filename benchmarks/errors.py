"""The errors that prevent a measurement.

BenchError
├── Unfit    this machine lacks something that every measurement needs
└── NotRun   one contender could not be installed or started; the others are still measured
"""

from __future__ import annotations


class BenchError(Exception):
    """Carries ``problem``, which may be published, and ``detail`` for the person who runs the benchmark."""

    def __init__(self, problem: str, detail: str = "") -> None:
        super().__init__(f"{problem}\n{detail}" if detail else problem)
        self.problem = problem
        self.detail = detail


class Unfit(BenchError):
    """This machine cannot run the benchmark."""


class NotRun(BenchError):
    """This contender cannot be measured."""
