"""What can keep a benchmark from its figures.

BenchError
├── Unfit    this machine lacks something without which nothing can be measured
└── NotRun   one contender could not be installed or started; the others are measured all the same
"""

from __future__ import annotations


class BenchError(Exception):
    """Carries ``problem``, fit to be published, and ``detail`` for whoever runs the benchmark."""

    def __init__(self, problem: str, detail: str = "") -> None:
        super().__init__(f"{problem}\n{detail}" if detail else problem)
        self.problem = problem
        self.detail = detail


class Unfit(BenchError):
    """Nothing can be measured here."""


class NotRun(BenchError):
    """This contender cannot be measured."""
