"""Read a document from YAML or JSON text. An error names the line and the field."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from portal.fleet.document.schema import Fleet, json_schema

#: Larger texts are not parsed.
MAX_BYTES = 512 << 10
#: Values, keys and brackets; the largest document that a fleet needs has a tenth of that.
MAX_EVENTS = 100_000
#: Levels of nesting; a document has five.
MAX_DEPTH = 20
_KEYS = "`version: 1`, `pools`, `models` and `deployments`"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_AT = re.compile(r" - at `(.*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.+)`$")


@dataclass(eq=False)
class BadDocument(Exception):
    """``problem`` is a sentence; ``field`` as in ``models[0].name``, empty if it is none; ``line`` from 1, or None."""

    problem: str
    field: str = ""
    line: int | None = None

    def __str__(self) -> str:
        """Return all of it in one line."""
        where = f"line {self.line}" if self.line is not None else ""
        place = ", ".join(filter(None, (where, self.field)))
        return f"{place}: {self.problem}" if place else self.problem


def read(text: str) -> Fleet:
    """Return the document. Raises BadDocument."""
    tree = _tree(text)
    try:
        return msgspec.convert(_value(tree), Fleet)
    except msgspec.ValidationError as error:
        raise _located(str(error), tree) from None


def values(text: str, keys: str) -> Any:
    """Return the values of a document of another kind, which has these keys. Raises BadDocument."""
    return _value(_tree(text, keys))


def locate(text: str, error: BadDocument) -> BadDocument:
    """Return an error of a document that was read, with the line of its field."""
    return BadDocument(error.problem, error.field, _line(_tree(text), error.field) if error.field else None)


def _tree(text: str, keys: str = _KEYS) -> yaml.Node:
    if len(text.encode()) > MAX_BYTES:
        raise BadDocument(f"The document has more than {MAX_BYTES >> 10} KiB.")
    try:
        _check_events(text)
        found = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise BadDocument(f"{error.problem or error.context}.", line=line) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise BadDocument(str(error)) from None
    if not isinstance(found, yaml.MappingNode):
        raise BadDocument(f"A document is a mapping with {keys}.", line=1)
    return found


def _check_events(text: str) -> None:
    """Refuse what would take long to read: aliases, which repeat a value, and deep nesting."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.CSafeLoader)):
        line = event.start_mark.line + 1 if event.start_mark is not None else None
        if isinstance(event, yaml.AliasEvent):
            raise BadDocument("Aliases (`*name`) are not read: write the value again.", line=line)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if count > MAX_EVENTS:
            raise BadDocument("It has too many values.", line=line)
        if depth > MAX_DEPTH:
            raise BadDocument("It nests too deep.", line=line)


def _value(node: yaml.Node) -> Any:
    """Return a node's value. Raises BadDocument for keys that are given twice, and for odd tags."""
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise BadDocument("A key is a word.", line=key.start_mark.line + 1)
            if key.value in found:
                raise BadDocument("It is given twice.", key.value, key.start_mark.line + 1)
            found[key.value] = _value(value)
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_value(each) for each in node.value]
    return _scalar(node, line)


def _scalar(node: yaml.Node, line: int) -> Any:
    if _CONTROL.search(node.value):
        raise BadDocument("A value has a line break, or another control character.", line=line)
    match node.tag.removeprefix("tag:yaml.org,2002:"):
        case "str" | "timestamp":
            return node.value
        case "null":
            return None
        case "bool":
            return node.value.lower() in {"true", "yes", "on"}
        case "int" | "float":
            try:
                return int(node.value) if node.tag.endswith("int") else float(node.value)
            except ValueError:
                raise BadDocument(f"{node.value} is no decimal number.", line=line) from None
    raise BadDocument(f"{node.tag} is no type of a document.", line=line)


def _located(error: str, tree: yaml.Node) -> BadDocument:
    """Return msgspec's error with the line that it is about."""
    at = _AT.search(error)
    field = at[1].removeprefix("$").removeprefix(".") if at else ""
    problem = error[: at.start()] if at else error
    if unknown := _UNKNOWN.match(problem):
        field = f"{field}.{unknown[1]}".removeprefix(".")
        problem = "There is no such field"
    elif problem.startswith("Invalid enum value") and (allowed := _allowed(field)):
        problem = f"Use one of {', '.join(map(str, allowed))}"
    return BadDocument(f"{problem}.".replace("Object m", "M"), field, _line(tree, field))


def _allowed(field: str) -> Sequence[Any]:
    """Return the values that a field may have, by the schema; empty if it does not list them."""
    found = json_schema()
    definitions = found["$defs"]
    for name, index in _STEP.findall(f".{field}"):
        while "$ref" in found:
            found = definitions[found["$ref"].rpartition("/")[2]]
        found = found.get("items", {}) if index else found.get("properties", {}).get(name, {})
    return tuple(found.get("enum", ()))


def _line(tree: yaml.Node, field: str) -> int:
    """Return the line of a field, or of the nearest one around it that is there."""
    node, line = tree, tree.start_mark.line
    for name, index in _STEP.findall(f".{field}" if field and not field.startswith("[") else field):
        if isinstance(node, yaml.MappingNode) and name:
            pair = next((pair for pair in node.value if pair[0].value == name), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line, pair[1]
        elif isinstance(node, yaml.SequenceNode) and index and int(index) < len(node.value):
            node = node.value[int(index)]
            line = node.start_mark.line
        else:
            break
    return int(line) + 1
