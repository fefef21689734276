"""What can keep a backup from being made or restored.

BackupError
├── BackupUnreadable    the file is no backup, is damaged, or another key opens it
└── TargetNotEmpty      there is data where the backup would be restored
"""

from __future__ import annotations


class BackupError(Exception):
    """Nothing was changed. Carries ``problem`` and ``remedy``, each a sentence."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem} {remedy}".rstrip())
        self.problem = problem
        self.remedy = remedy


class BackupUnreadable(BackupError):
    """The file cannot be restored by this version with this key."""


class TargetNotEmpty(BackupError):
    """The data directory or the database holds data already."""
