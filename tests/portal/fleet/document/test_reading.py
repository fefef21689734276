"""Reading a fleet's document: what it accepts, and that an error names the line and the field."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from portal.fleet.document import reading, schema
from portal.fleet.document.reading import BadDocument

WHOLE = """\
version: 1
pools:
  - name: h100-eu
    kind: gpu
    region: eu-west
    priority: 10
models:
  - name: qwen3-8b
    source: Qwen/Qwen3-8B
    visibility: public
    prices: {prompt: "0.15", cached_prompt: 0.015, completion: "0.60"}
deployments:
  - model: qwen3-8b
    pools: [h100-eu]
    min_replicas: 1
    max_replicas: 4
    options: {kv_dtype: fp8}
    engine_args: ["--max-num-seqs", "64"]
"""


def test_a_document_is_read_from_yaml_and_from_json() -> None:
    found = reading.read(WHOLE)
    assert (found.pools[0].priority, found.pools[0].high_water) == (10, 0.7)
    assert found.models[0].visibility == "public"
    assert found.deployments[0].options.kv_dtype == "fp8"
    as_json = {"version": 1, "pools": [{"name": "a", "kind": "cpu"}]}
    assert reading.read(json.dumps(as_json)).pools[0].name == "a"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 1\npools:\n- name: a\n  kind: gpx", "line 4, pools[0].kind: Use one of cpu, gpu, simulated."),
        ("version: 1\npools:\n- name: a\n  knd: gpu", "line 4, pools[0].knd: There is no such field."),
        ("version: 1\npools:\n- kind: gpu", "line 3, pools[0]: Missing required field `name`."),
        ("version: 1\n\npolls: []", "line 3, polls: There is no such field."),
        ("version: 2", "line 1, version: Use one of 1."),
        ("pools: []", "line 1: Missing required field `version`."),
        ("version: 1\npools:\n- name: a\n  kind: gpu\n  priority: high", "line 5, pools[0].priority: Expected `int`"),
        (
            "version: 1\nmodels:\n- name: x\n  context_tokens: -1",
            "line 4, models[0].context_tokens: Expected `int` >= 0",
        ),
        ("version: 1\nversion: 1", "line 2, version: It is given twice."),
        ("pools: [", "line 2: did not find expected node content"),
        ("a: &x 1\nb: *x", "line 2: Aliases (`*name`) are not read"),
        ("[" * 100, "line 1: It nests too deep."),
        ("[]", "line 1: A document is a mapping"),
        (
            "version: 1\npools:\n- name: !!python/object:os.system a",
            "line 3: tag:yaml.org,2002:python/object:os.system",
        ),
        (
            'version: 1\npools: [{name: "a\\n", kind: cpu}]',
            "line 2: A value has a line break, or another control character.",
        ),
        ("version: 1\nx: [" + "1," * 120_000 + "]", "line 2: It has too many values."),
        ("", "line 1: A document is a mapping"),
    ],
)
def test_an_error_names_the_line_and_the_field(text: str, said: str) -> None:
    with pytest.raises(BadDocument) as caught:
        reading.read(text)
    assert str(caught.value).startswith(said)


def test_a_document_that_is_too_large_is_not_parsed() -> None:
    with pytest.raises(BadDocument, match="more than 512 KiB"):
        reading.read("#" * (reading.MAX_BYTES + 1))


def test_the_line_of_a_field_is_found_again_after_reading() -> None:
    located = reading.locate(WHOLE, BadDocument("There is no pool 'x'.", "deployments[0].pools[0]"))
    assert str(located) == "line 14, deployments[0].pools[0]: There is no pool 'x'."


def test_the_schema_is_valid_and_accepts_the_examples_of_the_documentation(tmp_path: Path) -> None:
    schema_file = tmp_path / "schema.json"
    schema_file.write_text(json.dumps(schema.json_schema()))
    chapters = Path(__file__).parents[4] / "docs" / "operations"
    text = "".join((chapters / name).read_text() for name in ("models.md", "rollouts.md"))
    examples = [part.split("```")[0] for part in text.split("```yaml fleet\n")[1:]]
    first, second = (reading.read(example).deployments[0] for example in examples)
    assert (first.drain_seconds, second.rollout.canaries[0].contains) == (120, "Paris")
    example_files = [tmp_path / f"{number}.yaml" for number in range(len(examples))]
    for file, example in zip(example_files, examples, strict=True):
        file.write_text(example)
    for arguments in (
        ["--check-metaschema", str(schema_file)],
        ["--schemafile", str(schema_file), *map(str, example_files)],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "check_jsonschema", *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("dollars", "per", "pico"), [("0.15", 10**6, 150_000), (0.015, 10**6, 15_000), (2, 1, 2 * 10**12)]
)
def test_dollars_become_pico_dollars_exactly(dollars: str | float, per: int, pico: int) -> None:
    assert schema.pico(dollars, per) == pico


def test_dollars_that_are_no_whole_number_of_pico_dollars_are_refused() -> None:
    with pytest.raises(ValueError, match="no whole number"):
        schema.pico("0.0000001", 10**6)
