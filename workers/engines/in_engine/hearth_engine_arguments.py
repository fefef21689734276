"""Parse a command line of vLLM's server with vLLM's own parser: ``python -m hearth_engine_arguments …``.

Ends with status 0 if the server would accept it, and as argparse does if not: status 2, and the sentence on standard
error. Starts no server and loads no model. It does what the server's own ``main`` does before it starts one.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn


def main(arguments: Sequence[str]) -> None:
    """Parse the arguments. Raises SystemExit for those that the server would refuse."""
    cli = importlib.import_module("vllm.entrypoints.launchers.cli_args")
    base: Any = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser

    class Parser(base):  # type: ignore[misc]  # a class of another environment
        """vLLM's parser, which also names the option that was perhaps meant."""

        def error(self, message: str) -> NoReturn:
            super().error(f"{message}{_suggestion(message, self._option_string_actions)}")
            raise AssertionError("argparse ends the program")

    parser = cli.make_arg_parser(Parser(prog="vllm"))
    try:
        given = parser.parse_args(list(arguments))
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    if given.model_tag is not None:
        parser.error(f"unrecognized arguments: {given.model_tag}")
    # A template may be a file that only the machines of the engines have.
    given.chat_template = None
    try:
        cli.validate_parsed_serve_args(given)
    except (TypeError, ValueError) as error:
        parser.error(str(error).removeprefix("Error: "))


def _suggestion(message: str, known: Sequence[str]) -> str:
    """Return the option that is most like the first unknown one, as a half sentence; empty without one."""
    _, unrecognized, words = message.partition("unrecognized arguments: ")
    name = next((word.partition("=")[0] for word in words.split() if word.startswith("-")), "")
    if not unrecognized or not name:
        return ""
    close = difflib.get_close_matches(name.replace("_", "-"), list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.exit(0)
