"""The outcome of an audit, and the keys that it uses."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import click
import pytest

from hearth.isolation_audit import command
from hearth.isolation_audit.accounts import from_key_files
from hearth.isolation_audit.auc import Area, Separation, separate
from hearth.isolation_audit.errors import AuditFailed
from hearth.isolation_audit.exact_checks import Check, hits_reported, own_tokens, timed_responses
from hearth.isolation_audit.http_probe import HttpProbe, ProbeResponse
from hearth.isolation_audit.timing_attack import MeasurementPlan, Pair, Trial, trials
from hearth.isolation_audit.verdict import Finding, Outcome, allowed_bound, outcome

HOLDS = Check(name="it holds", tried=3)
BROKEN = Check(name="it holds", tried=3, against=("once it did not",))


def area(auc: float, reach: float) -> Area:
    return Area(auc=auc, lower=auc - reach, upper=auc + reach)


def separation(auc: float, reach: float, pairs: int = 10_000, paired: Area | None = None) -> Separation:
    return Separation(pairs=pairs, pooled=area(auc, reach), paired=paired or area(0.5, 0.01), distance=0.0, p_value=1.0)


def finding(audit: Separation, control_auc: float = 0.99) -> Finding:
    control = separation(control_auc, 0.01)
    return Finding(cache="prefix", audit=audit, control=control, prompt_tokens=1000, broken=0, control_hits=1_000)


@pytest.mark.parametrize(
    ("audit", "control_auc", "said"),
    [
        (separation(0.505, 0.011), 0.99, "isolated"),
        (separation(0.495, 0.011), 0.95, "isolated"),
        (separation(0.505, 0.011), 0.949, "inconclusive"),
        (separation(0.51, 0.0105), 0.99, "inconclusive"),
        (separation(0.53, 0.011), 0.99, "leak"),
        (separation(0.47, 0.011), 0.99, "leak"),
        (separation(0.53, 0.011), 0.6, "leak"),
        (separation(0.52, 0.08, pairs=400), 0.99, "isolated"),
        (separation(0.62, 0.08, pairs=400), 0.99, "leak"),
        (separation(0.5, 0.3, pairs=30), 0.99, "inconclusive"),
        (separation(0.505, 0.011, paired=area(0.53, 0.012)), 0.99, "leak"),
        (separation(0.505, 0.011, paired=area(0.511, 0.013)), 0.99, "isolated"),
    ],
)
def test_a_cache_is_judged_by_its_bound_and_its_control(audit: Separation, control_auc: float, said: Outcome) -> None:
    assert finding(audit, control_auc).outcome == said


@pytest.mark.parametrize(("pairs", "bound"), [(10, 0.65), (100, 0.65), (400, 0.6), (10_000, 0.52), (40_000, 0.52)])
def test_fewer_pairs_allow_a_wider_bound_to_a_limit_and_more_no_narrower_one(pairs: int, bound: float) -> None:
    assert allowed_bound(pairs) == pytest.approx(bound, abs=1e-4)


def test_a_handful_of_pairs_shows_no_isolation_however_alike_they_are() -> None:
    chance = random.Random(3)
    times = [[chance.gauss(5, 1) for _ in range(20)] for _ in range(2)]
    assert finding(separate(*times)).outcome == "inconclusive"


@pytest.mark.parametrize(("told_share", "said"), [(0.0, "isolated"), (0.1, "leak"), (1.0, "leak")])
def test_times_of_a_cache_that_some_prompts_share_are_a_leak(told_share: float, said: Outcome) -> None:
    """A request takes 5 ms give or take 1, one that is cached 2 less; the machine's pace drifts by half meanwhile."""
    chance, cached, fresh = random.Random(11), [], []
    for moment in range(4_000):
        pace = 1 + moment / 8_000
        saved = 2.0 if chance.random() < told_share else 0.0
        cached.append(pace * (chance.gauss(5, 1) - saved))
        fresh.append(pace * chance.gauss(5, 1))
    assert finding(separate(cached, fresh)).outcome == said


def test_one_broken_check_is_a_leak_whatever_the_times_say() -> None:
    quiet, deaf = finding(separation(0.5, 0.01)), finding(separation(0.5, 0.01), 0.5)
    assert outcome((quiet,), (HOLDS,)) == "isolated"
    assert outcome((quiet, deaf), (HOLDS,)) == "inconclusive"
    assert outcome((quiet,), (HOLDS, BROKEN)) == "leak"
    assert outcome((deaf,), (BROKEN,)) == "leak"


@pytest.mark.parametrize("cached_first", [True, False])
def test_pairs_come_in_random_order_and_either_prompt_is_asked_for_first_as_often(cached_first: bool) -> None:
    """The second request of a pair is slower than the first: by chance alone the orders would differ by hundreds."""
    plan = MeasurementPlan(cache="prefix", pairs=1_000, control_pairs=100, seed=5, until=0.0)
    drawn = trials(plan, random.Random(plan.seed))
    assert drawn.count(Trial(kind="audit", cached_first=cached_first)) == 500
    assert drawn.count(Trial(kind="control", cached_first=cached_first)) == 50
    assert drawn[:100] != sorted(drawn[:100], key=lambda trial: (trial.kind, trial.cached_first))


def answer(*, x_cache: str = "miss", response_id: str = "", cached_tokens: int = 0) -> ProbeResponse:
    return ProbeResponse(
        status=200,
        first_byte_us=1.0,
        x_cache=x_cache,
        response_id=response_id,
        prompt_tokens=100,
        cached_tokens=cached_tokens,
    )


@pytest.mark.parametrize(
    ("given_to_attacker", "holds"),
    [
        (answer(response_id="b"), True),
        (answer(response_id="b", cached_tokens=16), True),
        (answer(response_id="b", cached_tokens=32), False),
        (answer(response_id="a"), False),
        (answer(response_id="b", x_cache="hit"), False),
        (answer(response_id="b", x_cache="coalesced"), False),
    ],
)
def test_an_answer_or_a_token_of_the_victims_breaks_the_check(given_to_attacker: ProbeResponse, holds: bool) -> None:
    """Sixteen tokens are the template's: a prompt that nobody sent shows them too."""
    pair = Pair(
        victim=answer(response_id="a"),
        cached=given_to_attacker,
        fresh=answer(response_id="c", cached_tokens=16),
        cached_first=True,
        connection=0,
    )
    assert timed_responses("prefix", [pair], own_tokens([pair])).holds is holds


def test_a_control_that_was_told_of_its_own_answers_is_counted() -> None:
    """By x-cache, by the id of the earlier answer, by cached tokens beyond the template's."""
    earlier, new = answer(response_id="a"), answer(response_id="c", cached_tokens=16)
    given_back = [
        answer(response_id="b", x_cache="hit"),
        answer(response_id="a"),
        answer(response_id="b", cached_tokens=32),
        answer(response_id="b", cached_tokens=16),
    ]
    pairs = [Pair(victim=earlier, cached=each, fresh=new, cached_first=True, connection=0) for each in given_back]
    assert hits_reported(pairs, own_tokens(pairs)) == 3


def test_keys_come_from_two_files_and_both_are_needed(tmp_path: Path) -> None:
    assert from_key_files(None, None) is None
    victim, attacker = tmp_path / "victim", tmp_path / "attacker"
    victim.write_text("hk_victim\n")
    with pytest.raises(AuditFailed):
        from_key_files(victim, None)
    with pytest.raises(AuditFailed):
        from_key_files(victim, attacker)
    attacker.write_text("\n")
    with pytest.raises(AuditFailed):
        from_key_files(victim, attacker)
    attacker.write_text("hk_attacker\n")
    found = from_key_files(victim, attacker)
    assert found is not None
    assert (found.victim, found.attacker, found.created_slugs) == ("hk_victim", "hk_attacker", ())


@pytest.mark.parametrize("address", ["127.0.0.1:8080/v1", "ftp://host/v1", "http://"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(AuditFailed):
        HttpProbe(address, "hk_key")


@contextmanager
def refusing(status: int) -> Iterator[str]:
    """Respond to every request with this status; yields the address."""

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "is_answer"), [(400, True), (409, True), (504, True), (401, False), (429, False)])
def test_a_refused_trick_is_an_answer_and_a_refused_key_or_rate_ends_the_audit(status: int, is_answer: bool) -> None:
    """Else attacks that were never tried would hold."""
    with refusing(status) as address, closing(HttpProbe(address, "hk_key")) as probe:
        if is_answer:
            assert probe.send_with_retry(b"{}", {}, refused=True).status == status
        else:
            with pytest.raises(AuditFailed):
                probe.send_with_retry(b"{}", {}, refused=True)


def test_files_that_could_not_be_written_are_refused_beforehand(tmp_path: Path) -> None:
    assert command.NEW_FILE.convert(str(tmp_path / "a.json"), None, None) == tmp_path / "a.json"
    with pytest.raises(click.BadParameter):
        command.NEW_FILE.convert(str(tmp_path / "none" / "a.json"), None, None)
