"""Run management commands in one process: ``python -m hearth.provisioning.management_commands JSON…``.

Each argument is a command with its arguments, as a JSON list of strings. The first that fails ends the process. A
start of Django takes as long as most commands.
"""

from __future__ import annotations

import json
import sys

from django.core.management import execute_from_command_line


def main(commands: list[list[str]]) -> None:
    """Run them in order. Exits as ``python -m django`` does when one fails."""
    for command in commands:
        execute_from_command_line(["hearth manage", *command])


if __name__ == "__main__":
    main([json.loads(argument) for argument in sys.argv[1:]])
