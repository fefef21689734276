"""Compile the C programs of the benchmarks, at each run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks.errors import Unfit


def compile_program(source: Path, folder: Path) -> Path:
    """Compile one source file and return the program, which has its name without suffix. Raises Unfit."""
    program = folder / source.stem
    command = ["gcc", "-O2", "-std=gnu11", "-D_GNU_SOURCE", "-o", str(program), str(source)]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    if compiled.returncode != 0:
        raise Unfit(f"{source.name} does not compile.", compiled.stderr)
    return program
