"""Errors of signing in through a provider.

SignInRefused   the provider's answer does not make its person a member here; ``reason`` says why, in words
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class SignInRefused(Exception):
    """``reason`` is one sentence without a full stop, and holds nothing that the provider sent."""

    reason: str
