"""Checks with whole engines: starts, promotion, eviction, tensor parallel, and what an engine reports as cached."""

from __future__ import annotations

from collections.abc import Sequence

from workers.devices.provider import Device
from workers.engines import cache_config, start_parts, trial
from workers.engines.driver import EngineSpec
from workers.engines.trial import Serving
from workers.gpu_check.bench import RELEASE_SECONDS, Bench
from workers.gpu_check.device_checks import Passed
from workers.gpu_check.findings import Failed, Untried

#: Longer than several blocks of any size that engines use.
PROMPT = " ".join(f"Sentence {number} of a prompt that is sent twice." for number in range(60))


def cold_start(bench: Bench) -> Passed:
    """An engine starts from nothing, on the device of its slot alone, and ends with its memory freed."""
    device = bench.device()
    with bench.engines().serving(bench.names(device)) as serving:
        others = [each for each in bench.free if each != device]
        _expect_used(bench, serving, [device], others)
        parts = start_parts.read(serving.spec.log_path.read_text(errors="replace"))
        freed = _end(bench, serving, [device])
    figures = {"cold_start_seconds": round(serving.start.seconds, 2), **parts, "freed_after_seconds": round(freed, 3)}
    shown = ", ".join(f"{name.removesuffix('_seconds')} {seconds:.1f} s" for name, seconds in parts.items())
    return f"first token after {serving.start.seconds:.1f} s" + (f" ({shown})" if shown else ""), figures


def promotion(bench: Bench) -> Passed:
    """A placeholder's process becomes an engine; before that it uses no device."""
    device = bench.device()
    with bench.engines().zygote(bench.names(device)) as zygote:
        if bench.kind == "GPU" and (why := bench.used_by(zygote.process, device)):
            raise Failed(f"{device.uuid} is in use before the promotion: {why}")
        serving = bench.engines().promote(zygote)
        _expect_used(bench, serving, [device], [])
        freed = _end(bench, serving, [device])
    figures = {
        "warm_up_seconds": round(zygote.status.seconds, 2),
        "promotion_seconds": round(serving.start.seconds, 2),
        "freed_after_seconds": round(freed, 3),
    }
    warm_up = f"its imports took {zygote.status.seconds:.1f} s before"
    return f"first token {serving.start.seconds:.1f} s after the promotion; {warm_up}", figures


def gang_promotion(bench: Bench) -> Passed:
    """A placeholder's process on two devices becomes an engine that uses both; before that it uses none."""
    if bench.kind == "share of a CPU":
        raise Untried("one engine on a CPU is not divided")
    pair = bench.devices(2)
    with bench.engines().zygote(bench.names(*pair)) as zygote:
        for device in pair:
            if bench.kind == "GPU" and (why := bench.used_by(zygote.process, device)):
                raise Failed(f"{device.uuid} is in use before the promotion: {why}")
        serving = bench.engines().promote(zygote)
        _expect_used(bench, serving, pair, [])
        freed = _end(bench, serving, pair)
    figures = {"promotion_seconds": round(serving.start.seconds, 2), "freed_after_seconds": round(freed, 3)}
    text = f"first token {serving.start.seconds:.1f} s after the promotion on {pair[0].uuid} and {pair[1].uuid}"
    if bench.kind != "GPU":
        raise Untried(f"no model is divided among fake devices; {text}")
    return text, figures


def eviction(bench: Bench) -> Passed:
    """A placeholder's process is killed, and its device is free for another engine at once."""
    device = bench.device()
    with bench.engines().zygote(bench.names(device)) as zygote:
        bench.occupy([device], zygote.process)
        seconds = trial.end(zygote.process) + bench.wait_until_free([device])
    if seconds > RELEASE_SECONDS:
        raise Failed(f"its device was free after {seconds:.1f} s", {"evicted_after_seconds": round(seconds, 3)})
    return f"gone, and its device free, after {seconds:.2f} s", {"evicted_after_seconds": round(seconds, 3)}


def tensor_parallel(bench: Bench) -> Passed:
    """One engine on two devices uses both, and ends with both free."""
    if bench.kind == "share of a CPU":
        raise Untried("one engine on a CPU is not divided")
    pair = bench.devices(2)
    with bench.engines().serving(bench.names(*pair)) as serving:
        _expect_used(bench, serving, pair, [each for each in bench.free if each not in pair])
        freed = _end(bench, serving, pair)
    figures = {"cold_start_seconds": round(serving.start.seconds, 2), "freed_after_seconds": round(freed, 3)}
    text = f"first token after {serving.start.seconds:.1f} s on {pair[0].uuid} and {pair[1].uuid}"
    if bench.kind != "GPU":
        raise Untried(f"no model is divided among fake devices; {text}")
    return text, figures


def cached_tokens(bench: Bench) -> Passed:
    """A prompt that is repeated is read from the cache up to its last full block; under another salt it is not."""
    device = bench.device()
    with bench.engines().serving(bench.names(device)) as serving:
        spec = serving.spec
        block_size = cache_config.block_size_tokens(trial.metrics(spec))
        if block_size is None:
            raise Untried("the engine's metrics do not have its block size")
        counts = [_cached(spec, salt) for salt in ("first", "first", "second")]
    return judge(counts, block_size)


def judge(counts: Sequence[tuple[int, int]], block_size: int) -> Passed:
    """Compare the prompt's tokens and those that were cached, of the first, the repeated and the salted request.

    Raises Failed.
    """
    prompt = counts[0][0]
    # The last token is always computed, because its result is the first token of the answer.
    expected = (prompt - 1) // block_size * block_size
    figures = {"prompt_tokens": prompt, "cached_tokens": counts[1][1], "expected_cached_tokens": expected}
    if [cached for _, cached in counts] != [0, expected, 0]:
        told = ", ".join(str(cached) for _, cached in counts)
        raise Failed(f"cached were {told} tokens of {prompt}; expected 0, {expected}, 0 (another salt)", figures)
    return f"{expected} of {prompt} tokens when repeated, none under another salt", figures


def _cached(spec: EngineSpec, salt: str) -> tuple[int, int]:
    """Return the prompt's tokens, and those of them that were cached."""
    counted = trial.usage(spec, PROMPT, salt=salt)
    details = counted.get("prompt_tokens_details") or {}
    return int(counted["prompt_tokens"]), int(details.get("cached_tokens") or 0)


def _expect_used(bench: Bench, serving: Serving, devices: Sequence[Device], others: Sequence[Device]) -> None:
    """Raise Failed unless an engine uses exactly these devices."""
    bench.occupy(devices, serving.process)
    if bench.kind == "share of a CPU":
        return
    bench.wait_until_used(devices)
    for device in others:
        if why := bench.used_by(serving.process, device):
            raise Failed(f"the engine of {devices[0].uuid} uses {device.uuid}, too: {why}")


def _end(bench: Bench, serving: Serving, devices: Sequence[Device]) -> float:
    """Kill an engine; return after how many seconds its devices were free. Raises Failed."""
    seconds = trial.end(serving.process) + bench.wait_until_free(devices)
    if seconds > RELEASE_SECONDS:
        raise Failed(f"its devices were free {seconds:.1f} s after the engine was killed")
    return seconds
