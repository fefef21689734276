#!/usr/bin/env python
"""Run Django's management commands from a checkout, installed or not."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Put ``platform/`` on the import path, then hand over to Django."""
    sys.path.insert(1, str(Path(__file__).resolve().parent / "platform"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hearth.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
