"""A hash of passwords that takes no time, for tests."""

from __future__ import annotations

from django.contrib.auth.hashers import PBKDF2PasswordHasher


class FewRounds(PBKDF2PasswordHasher):
    """Django's own hash, which keeps the number of its rounds beside it, with few of them."""

    iterations = 1
