"""Read the container files as Docker would, as far as that goes without Docker."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from dockerfile_parse import DockerfileParser

from hearth.paths import ROOT

DOCKERFILE = ROOT / "docker" / "Dockerfile"
COMPOSE = ROOT / "docker" / "compose.yaml"
COMPOSE_NODE = ROOT / "docker" / "compose.node.yaml"
COMPOSE_FILES = (COMPOSE, COMPOSE_NODE)
#: ``$$`` is a dollar; the other forms in use: ``${NAME:-default}``, ``${NAME:?what is missing}``, ``${NAME:+instead}``.
INTERPOLATION = re.compile(r"\$(?:(\$)|\{(\w+):([-?+])([^}]*)\})")


@dataclass(slots=True)
class Stage:
    """One stage of the Dockerfile; ``copies`` are the sources it takes from the build context."""

    name: str
    base: str
    copies: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    user: str = ""
    command: list[str] = field(default_factory=list)
    #: None without the instruction; empty for NONE.
    health: list[str] | None = None


def stages() -> dict[str, Stage]:
    """Return the stages by name, in order; each has what it inherits from its base."""
    found: dict[str, Stage] = {}
    for entry in DockerfileParser(path=str(DOCKERFILE)).structure:
        instruction, value = entry["instruction"], entry["value"]
        if instruction == "FROM":
            base, _, name = value.partition(" AS ")
            below = found.get(base)
            stage = Stage(name, base)
            if below is not None:
                stage.environment, stage.user = dict(below.environment), below.user
            found[name] = stage
        elif instruction not in {"ARG", "COMMENT"}:
            _apply(stage, instruction, value)
    return found


def _apply(stage: Stage, instruction: str, value: str) -> None:
    match instruction:
        case "COPY" if not value.startswith("--from"):
            stage.copies += value.split()[:-1]
        case "ENV":
            stage.environment |= dict(pair.split("=", 1) for pair in shlex.split(value))
        case "USER":
            stage.user = value
        case "CMD":
            stage.command = json.loads(value)
        case "HEALTHCHECK":
            stage.health = [] if value == "NONE" else json.loads(value.partition("CMD ")[2])


def compose(path: Path) -> dict[str, Any]:
    """Return a compose file with its merges done and its variables as they stand."""
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Return a value of a compose file as a container gets it. Raises KeyError for a variable that must be set."""

    def replace(found: re.Match[str]) -> str:
        dollar, name, kind, rest = found.groups()
        if dollar:
            return "$"
        if not variables.get(name) and kind == "?":
            raise KeyError(f"{name}: {rest}")
        if kind == "+":
            return rest if variables.get(name) else ""
        return variables.get(name) or rest

    return INTERPOLATION.sub(replace, text)


def environment(path: Path, service: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a service. A variable without a value is passed on if it is set."""
    given: dict[str, str | None] = compose(path)["services"][service]["environment"]
    set_ = {name: f"${{{name}:-}}" if value is None else value for name, value in given.items()}
    return {
        name: interpolate(str(value), variables)
        for name, value in set_.items()
        if given[name] is not None or name in variables
    }


def command(path: Path, service: str, variables: Mapping[str, str]) -> list[str]:
    """Return the command of a service: its own, or that of its image."""
    found = compose(path)["services"][service]
    if "command" in found:
        return shlex.split(interpolate(found["command"], variables))
    return stages()[found["build"]["target"]].command
