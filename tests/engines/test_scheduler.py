"""The scheduler decides steps as vLLM does, and a step costs what it computes."""

from workers.simulated.engine.block_pool import BlockPool
from workers.simulated.engine.scheduler import Scheduled, Scheduler, Step, StepCosts

BLOCK = 32


def keys(names: str) -> tuple[bytes, ...]:
    """Return a block's key for each letter."""
    return tuple(name.encode() for name in names)


def scheduler(blocks: int, *, max_sequences: int = 4, max_step_tokens: int = 10_000) -> Scheduler[Scheduled]:
    """Return a scheduler over this many usable blocks."""
    pool = BlockPool(1 + blocks)
    return Scheduler(pool, block_size=BLOCK, max_sequences=max_sequences, max_step_tokens=max_step_tokens)


def stepped(steps: Scheduler[Scheduled]) -> Step[Scheduled]:
    """Compute the next step."""
    step = steps.next_step()
    assert step is not None
    steps.complete(step)
    return step


def test_a_long_prompt_is_computed_in_chunks_beside_what_decodes() -> None:
    steps = scheduler(1000, max_step_tokens=256)
    short, long = Scheduled(10, 50, ()), Scheduled(600, 1, ())
    steps.add(short)
    first = stepped(steps)
    assert (first.prompt_tokens, first.decoding, first.admitted) == (10, 0, [short])
    assert short.emitted == 1
    steps.add(long)
    chunks = []
    while not long.emitted:
        step = stepped(steps)
        chunks.append((step.prompt_tokens, step.decoding))
    assert chunks == [(255, 1), (255, 1), (90, 1)]


def test_a_sequence_waits_for_blocks() -> None:
    steps = scheduler(10)
    first, second = Scheduled(6 * BLOCK, 1, keys("abcdef")), Scheduled(7 * BLOCK, 1, keys("ghijklm"))
    steps.add(first)
    steps.add(second)
    assert stepped(steps).admitted == [first]
    steps.remove(first)
    assert stepped(steps).admitted == [second]


def test_a_sequence_waits_for_its_turn_and_while_nothing_is_admitted() -> None:
    steps = scheduler(1000, max_sequences=1)
    first, second = Scheduled(10, 2, ()), Scheduled(10, 2, ())
    steps.add(first)
    steps.add(second)
    assert stepped(steps).admitted == [first]
    assert stepped(steps).admitted == []
    steps.remove(first)
    steps.admits = False
    assert steps.next_step() is None
    steps.admits = True
    assert stepped(steps).admitted == [second]


def test_a_sequence_finds_what_is_cached_but_for_its_last_token() -> None:
    steps = scheduler(20)
    found = []
    for names in ("abcdef", "abcdeXY", "abcdeXY"):
        sequence = Scheduled(len(names) * BLOCK, 1, keys(names))
        steps.add(sequence)
        step = stepped(steps)
        steps.remove(sequence)
        found.append((sequence.cached_tokens // BLOCK, step.prompt_tokens // BLOCK))
    assert found == [(0, 6), (5, 2), (6, 1)]


def test_a_held_sequence_keeps_its_blocks_and_is_not_computed() -> None:
    steps = scheduler(20)
    held, other = Scheduled(10, 50, ()), Scheduled(10, 50, ())
    steps.add(held)
    steps.add(other)
    stepped(steps)
    held.held = True
    assert [each for each, _ in stepped(steps).tokens] == [other]
    assert len(held.blocks) == 1


def test_a_sequence_that_is_removed_in_mid_step_frees_its_blocks_and_gets_no_token() -> None:
    steps = scheduler(20)
    sequence = Scheduled(10 * BLOCK, 5, keys("abcdefghij"))
    steps.add(sequence)
    step = steps.next_step()
    assert step is not None
    steps.remove(sequence)
    assert steps.pool.usage == 0
    assert steps.complete(step) == []
    assert steps.next_step() is None


def test_a_step_costs_its_prompt_tokens_and_what_decodes_beside_them() -> None:
    costs = StepCosts(fixed=0.5, prompt_token=0.25, decode=0.125, any_decode=2.0)
    assert costs.seconds(8, 0) == 2.5
    assert costs.seconds(0, 4) == 3.0
    assert costs.seconds(8, 4) == 5.0
