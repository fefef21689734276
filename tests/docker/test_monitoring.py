"""Alerts and boards: their expressions are PromQL, over metrics and labels that operations/monitoring.md describes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator

import promql_parser
import pytest
import yaml

from hearth.paths import ROOT

FOLDER = ROOT / "docker" / "monitoring"
#: Of every target and of every histogram, and what ``promhttp`` adds.
COMMON_LABELS = {"instance", "job", "role", "le"}
#: What Grafana fills in, by what stands in for it here.
VARIABLES = {"$__rate_interval": "5m", "$model": "m", "$node": "n", "$deployment": "d"}
BOARDS = sorted(path.name for path in FOLDER.glob("*.json"))


def described() -> dict[str, set[str]]:
    """Return the labels of each metric in the tables of docs/operations/monitoring.md."""
    page = (ROOT / "docs" / "operations" / "monitoring.md").read_text()
    rows = re.findall(r"^\| `(hearth_\w+)` \|([\w, ]*)\|", page, re.MULTILINE)
    return {name: set(filter(None, labels.replace(" ", "").split(","))) for name, labels in rows}


def rules() -> list[dict[str, object]]:
    """Return the alerts."""
    found = yaml.safe_load((FOLDER / "rules.yaml").read_text())
    return [rule for group in found["groups"] for rule in group["rules"]]


def panels(board: str) -> list[dict[str, object]]:
    """Return the graphs of a board."""
    found = json.loads((FOLDER / board).read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Yield where each expression is, and the expression with Grafana's variables filled in."""
    for rule in rules():
        yield str(rule["alert"]), str(rule["expr"])
    for panel in (panel for board in BOARDS for panel in panels(board)):
        for target in panel["targets"]:  # type: ignore[attr-defined]
            expression = target["expr"]
            for variable, value in VARIABLES.items():
                expression = expression.replace(variable, value)
            yield str(panel["title"]), expression


@pytest.mark.parametrize(
    "expression", [pytest.param(found, id=f"{n} {where}") for n, (where, found) in enumerate(expressions())]
)
def test_an_expression_is_promql_over_metrics_that_there_are(expression: str) -> None:
    promql_parser.parse(expression)
    known, labels = described(), set(COMMON_LABELS)
    names = re.findall(r"\bhearth_\w+", re.sub(r'"[^"]*"', "", expression))
    process = re.findall(r"\bprocess_(?:cpu_seconds_total|resident_memory_bytes)\b", expression)
    assert names or process, "an expression over no known metric would pass whatever it says"
    for name in names:
        metric = name if name in known else re.sub(r"_(bucket|count|sum)$", "", name)
        assert metric in known, name
        labels |= known[metric]
    asked = set(re.findall(r"(\w+)\s*=~?\"", expression))
    for group in re.findall(r"\bby \(([^)]*)\)", expression):
        asked |= set(group.replace(" ", "").split(","))
    assert asked <= labels


def test_no_rule_and_no_board_is_missed() -> None:
    assert (len(rules()) > 20, len(described()) > 80) == (True, True)
    assert BOARDS == ["dashboard.json", "gpus.json"]
    assert all(panel["targets"] for board in BOARDS for panel in panels(board))


def test_each_alert_says_what_it_means_and_where_to_look() -> None:
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        assert set(rule["annotations"]) == {"summary", "action"}, rule["alert"]  # type: ignore[call-overload]
        assert rule["labels"]["severity"] in {"warning", "critical"}, rule["alert"]  # type: ignore[index]


@pytest.mark.parametrize("board", BOARDS)
def test_a_boards_graphs_lie_beside_each_other(board: str) -> None:
    places = [tuple(panel["gridPos"].values()) for panel in panels(board)]  # type: ignore[attr-defined]
    assert len(set(places)) == len(places) > 10
    assert all(x + width <= 24 for _, width, x, _ in places)
    assert len({panel["id"] for panel in panels(board)}) == len(places)


def test_boards_have_names_and_addresses_of_their_own() -> None:
    found = [json.loads((FOLDER / board).read_text()) for board in BOARDS]
    assert len(found) == len({board["uid"] for board in found}) == len({board["title"] for board in found}) == 2


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Debian's package prometheus")
def test_alerts_fire_on_what_they_are_for() -> None:
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]):
        run = subprocess.run(
            ["promtool", *command], check=False, cwd=FOLDER, capture_output=True, text=True, timeout=120
        )
        assert run.returncode == 0, run.stdout + run.stderr
