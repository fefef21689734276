"""The end of an engine's log as people read it: bounded, whole lines, and nothing that clients sent."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from workers.engines import engine_log

SECRET = "tell nobody"


@pytest.mark.parametrize(
    "line",
    [
        f"INFO Received request cmpl-1: prompt: '{SECRET}', params: SamplingParams(n=1)",
        f'INFO Received request cmpl-1: prompt: "it\'s {SECRET}", params: SamplingParams(n=1)',
        f"INFO Received request cmpl-1: prompt: 'a\\'b {SECRET}', params: SamplingParams(n=1)",
        f"ERROR dump: NewRequestData(req_id=1,prompt_token_ids=[1, {SECRET}, 3],mm=None)",
        f'{{"messages": [{{"role": "user", "content": "{SECRET}"}}]}}',
        f"non-default args: {{'api_key': ['{SECRET}'], 'model': 'm'}}",
        f"INFO cache_salt='{SECRET}'",
        f"INFO prompt: '{SECRET} and the line is cut here",
        f"messages=[{{'role':'user','content':'see [1] my {SECRET}'}}]",
        f"new_token_ids=[[1,2],[3,{SECRET}]]",
        f"resumed_req_token_ids={{'a': [1], 'b': [{SECRET}]}}, x=1",
        f"all_token_ids=array('l', [1, {SECRET}])",
        f"ValidationError: [type=missing, input_value={{'a': [1], 'b': '{SECRET}'}}, input_type=dict]",
        f"input=b'{SECRET}'",
        f"RequestOutput(outputs=[CompletionOutput(index=0, text='{SECRET}')])",
        f'body="{{\\"input\\": \\"a {SECRET}\\"}}"',
    ],
)
def test_what_clients_sent_and_keys_are_left_out(line: str) -> None:
    found = engine_log.cleaned(line)
    assert SECRET not in found
    assert engine_log.LEFT_OUT in found


def test_other_lines_stay_as_they_are() -> None:
    line = "(EngineCore pid=1) ERROR 10:00 torch.OutOfMemoryError: CUDA out of memory. Tried to allocate [2.0 GiB]"
    assert engine_log.cleaned(line) == line


def test_a_tail_is_bounded_and_begins_with_a_whole_line(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(b"".join(b"line %06d \0 end\n" % number for number in range(20_000)))
    found = engine_log.tail(log)
    assert len(found) <= engine_log.TAIL_BYTES
    assert found.startswith("line ") and found.endswith("line 019999  end\n")
    assert engine_log.last_lines(found, 2) == "line 019998  end\nline 019999  end"
    assert engine_log.tail(tmp_path / "none.log") == ""


def test_a_prompt_that_begins_before_the_tail_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(f"prompt: '{'x ' * engine_log.TAIL_BYTES}{SECRET}', params\nready\n")
    assert engine_log.tail(log) == "ready\n"


def test_the_name_of_a_log_is_made_of_the_id_alone() -> None:
    assert engine_log.name_of(UUID(int=0xABCDEF12)) == "engine-abcdef12.log"
