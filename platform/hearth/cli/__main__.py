"""``python -m hearth.cli``: the `hearth` command."""

from hearth.cli.main import main

main()
