"""The output that a request requires: free text, the call of a tool, or JSON of a schema."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from workers.simulated.requests.errors import ApiError, bad_value

NO_TOOLS = "When using `tool_choice`, `tools` must be set."
EMPTY_TOOLS = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
NO_PARSER = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
UNKNOWN_TOOL = "The tool specified in `tool_choice` does not match any of the specified `tools`"
NO_SCHEMA = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
#: Deep enough for any schema in use; one that refers to itself ends here.
DEEPEST = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredOutput:
    """The exact text of a reply. If ``tool`` is set, the reply calls that function with the text as arguments."""

    text: str
    tool: str | None = None
    #: The request named the function, for which vLLM's finish reason is "stop".
    named: bool = False


def check_tools(body: Mapping[str, Any], *, chooses_tools: bool) -> None:
    """Check tools and response format as vLLM does before it renders the prompt. Raises ApiError."""
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools is not None and not tools:
        raise bad_value("tools", EMPTY_TOOLS)
    if choice not in (None, "none") and not tools:
        raise bad_value("tool_choice", NO_TOOLS)
    if isinstance(choice, dict) and _named(choice) not in {_function(tool).get("name") for tool in tools or ()}:
        raise bad_value("tool_choice", UNKNOWN_TOOL)
    wanted = body.get("response_format") or {}
    if wanted.get("type") == "json_schema" and not wanted.get("json_schema"):
        raise bad_value("response_format", NO_SCHEMA)
    if tools and choice in (None, "auto") and not chooses_tools:
        raise ApiError(NO_PARSER)


def required_output(body: Mapping[str, Any], messages: Sequence[Mapping[str, str]]) -> RequiredOutput | None:
    """Return the required output, or None for free text.

    A model that may choose calls the tool whose name occurs in the last message, if that is a user's.
    """
    choice = body.get("tool_choice")
    functions = [_function(tool) for tool in body.get("tools") or ()]
    if isinstance(choice, dict):
        called = next((each for each in functions if each.get("name") == _named(choice)), None)
    elif choice == "required":
        called = _chosen(functions, messages) or functions[0]
    else:
        called = _chosen(functions, messages) if choice != "none" else None
    if called is not None:
        arguments = _json(called.get("parameters") or {})
        return RequiredOutput(text=arguments, tool=str(called["name"]), named=isinstance(choice, dict))
    wanted = body.get("response_format") or {}
    if wanted.get("type") == "json_object":
        return RequiredOutput(text="{}")
    if wanted.get("type") == "json_schema":
        return RequiredOutput(text=_json(wanted["json_schema"].get("schema") or {}))
    return None


def example(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> Any:
    """Return the smallest instance of a JSON schema, for the keywords that this function supports."""
    if depth > DEEPEST:
        return None
    if "$ref" in schema:
        return example(_resolved(schema["$ref"], root), root, depth + 1)
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    if schema.get("enum"):
        return schema["enum"][0]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return example(schema[name][0], root, depth + 1)
    return _of_type(schema, root, depth)


def _of_type(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        properties = schema.get("properties") or {}
        return {name: example(properties.get(name) or {}, root, depth + 1) for name in schema.get("required") or ()}
    if kind == "array":
        return [example(schema.get("items") or {}, root, depth + 1)] * int(schema.get("minItems") or 0)
    if kind == "string":
        return "a" * int(schema.get("minLength") or 1)
    if kind in {"integer", "number"}:
        return schema.get("minimum", 0)
    return False if kind == "boolean" else None


def _resolved(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) or {}
    resolved: Mapping[str, Any] = found
    return resolved


def _json(schema: Mapping[str, Any]) -> str:
    return orjson.dumps(example(schema, schema)).decode()


def _function(tool: Any) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    return function if isinstance(function, dict) else {}


def _named(choice: Mapping[str, Any]) -> Any:
    function = choice.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _chosen(functions: Sequence[Mapping[str, Any]], messages: Sequence[Mapping[str, str]]) -> Mapping[str, Any] | None:
    if not messages or messages[-1]["role"] != "user":
        return None
    said = set(re.findall(r"[\w-]+", messages[-1]["content"]))
    return next((each for each in functions if each.get("name") in said), None)
