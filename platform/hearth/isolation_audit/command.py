"""``hearth audit-isolation``: what can one tenant learn of another's prompts through this deployment?

In the manner of "Auditing Prompt Caching in Language Model APIs" (arXiv 2502.07776).
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from hearth.instance.instance import Instance
from hearth.isolation_audit import accounts, exact_checks, report
from hearth.isolation_audit.accounts import Accounts, KeyFiles
from hearth.isolation_audit.auc import Separation, separate
from hearth.isolation_audit.errors import AuditFailed
from hearth.isolation_audit.exact_checks import Check
from hearth.isolation_audit.prompts import CACHES, CacheName, Phrasebook
from hearth.isolation_audit.report import Audit
from hearth.isolation_audit.timing_attack import CONTROL_PAIRS, Measured, Pair, Party, Plan, Stopwatch
from hearth.isolation_audit.verdict import EXIT_STATUS, TARGET_PAIRS, Finding

HELP = """\
Try to tell another tenant's cached prompts from new ones, by x-cache, cached tokens and the time to the first byte,
through the gateway of a running deployment. As the operator, on the instance of HEARTH_DATA_DIR, it makes tenants named
isolation-audit-… and archives them in the end; nothing of anybody else is touched, but its prompts take room in the
engines' prefix caches. With two tenants' keys (HEARTH_AUDIT_VICTIM_KEY and HEARTH_AUDIT_ATTACKER_KEY, or files) it
runs against any address, and they pay. Says beforehand what it sends.
Exit status: 0 isolated, 1 it could not be done, 2 wrong arguments, 3 a leak, 4 inconclusive.
"""
FEWEST_PAIRS = 10
#: How often a terminal hears how far it is.
TELL_EVERY_SECONDS = 30.0
REQUESTS_OF_A_PAIR = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the command line asks for. ``model`` empty: the first that the attacker may call."""

    api_base: str
    model: str
    caches: tuple[CacheName, ...]
    pairs: int
    prefix_words: int
    minutes: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    parser.add_argument("--pairs", type=_pairs, default=TARGET_PAIRS, help=f"for each cache; default {TARGET_PAIRS:,}")
    parser.add_argument("--cache", choices=(*CACHES, "both"), default="both", help="default: both")
    parser.add_argument("--model", default="", help="default: the first that the attacker may call")
    parser.add_argument("--prefix-words", type=int, default=500, help="that prompts have in common; default 500")
    parser.add_argument("--minutes", type=float, default=60, help="ends earlier, with what it has; default 60")
    parser.add_argument("--url", default="", help="of the inference API; default: this instance's")
    parser.add_argument("--victim-key-file", type=Path, help="instead of HEARTH_AUDIT_VICTIM_KEY")
    parser.add_argument("--attacker-key-file", type=Path, help="instead of HEARTH_AUDIT_ATTACKER_KEY")
    parser.add_argument("--json", type=_new_file, metavar="FILE", help="write everything that was measured")
    parser.add_argument("--report", type=_new_file, metavar="FILE", help="write the report as Markdown")


def run(instance: Instance, parsed: argparse.Namespace) -> int:
    """Audit, print the report, write what is asked for; return the exit status. Raises AuditFailed."""
    wish = Wish(
        api_base=parsed.url or instance.api_base,
        model=parsed.model,
        caches=CACHES if parsed.cache == "both" else (parsed.cache,),
        pairs=parsed.pairs,
        prefix_words=parsed.prefix_words,
        minutes=parsed.minutes,
    )
    given = accounts.given(KeyFiles(victim=parsed.victim_key_file, attacker=parsed.attacker_key_file))
    whose: AbstractContextManager[Accounts] = nullcontext(given) if given else accounts.made(instance)
    with _ended_in_order(), whose as found:
        audit = conduct(wish, found)
    text = report.markdown(audit)
    print(f"\n{text}")
    if parsed.report:
        parsed.report.write_text(text)
    if parsed.json:
        parsed.json.write_text(json.dumps(report.document(audit)) + "\n")
    return EXIT_STATUS[audit.outcome]


def conduct(wish: Wish, found: Accounts) -> Audit:
    """Measure what is wished for. Raises AuditFailed."""
    began, until = time.time(), time.monotonic() + wish.minutes * 60
    seed = secrets.randbits(64)
    with ExitStack() as cleanup:
        victim, attacker = (
            cleanup.enter_context(closing(Party.at(wish.api_base, key))) for key in (found.victim, found.attacker)
        )
        phrasebook = Phrasebook(model=wish.model or _first_model(attacker), prefix_words=wish.prefix_words)
        stopwatch = Stopwatch(phrasebook, victim, attacker)
        tokens = {cache: stopwatch.warm_up(cache).prompt_tokens for cache in wish.caches}
        _say_costs(wish, found, tokens)
        checks = _exact_checks(wish, found, phrasebook, victim, attacker)
        measured = {cache: _measure(wish, cache, stopwatch, seed, until) for cache in wish.caches}
    findings = tuple(_finding(cache, each, tokens[cache]) for cache, each in measured.items())
    timed = [
        exact_checks.of_pairs(cache, each.audit, exact_checks.own_tokens(each.audit))
        for cache, each in measured.items()
    ]
    return Audit(
        api_base=wish.api_base,
        model=phrasebook.model,
        began=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(began)),
        minutes=(time.time() - began) / 60,
        seed=seed,
        accounts=f"tenants {', '.join(found.made)}" if found.made else "keys of two tenants",
        findings=findings,
        measured=tuple(measured.values()),
        checks=(*timed, *checks),
        scopes_skipped=not found.scopes,
    )


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let SIGTERM end an audit as Ctrl-C does, so that what it made is closed. Raises AuditFailed for either."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as error:
        raise AuditFailed("Stopped before anything could be said.") from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _exact_checks(
    wish: Wish, found: Accounts, phrasebook: Phrasebook, victim: Party, attacker: Party
) -> tuple[Check, ...]:
    return (
        exact_checks.tricks(phrasebook, victim, attacker),
        exact_checks.at_once(phrasebook, victim, attacker),
        *(exact_checks.scope(phrasebook, wish.api_base, keys) for keys in found.scopes),
    )


def _measure(wish: Wish, cache: CacheName, stopwatch: Stopwatch, seed: int, until: float) -> Measured:
    """Measure one cache, in its share of the time that is left."""
    now, later = time.monotonic(), len(wish.caches) - wish.caches.index(cache)
    plan = Plan(
        cache=cache,
        pairs=wish.pairs,
        control_pairs=min(wish.pairs, CONTROL_PAIRS),
        seed=seed,
        until=now + (until - now) / later,
    )
    told = now

    def tell(done: int, of: int) -> None:
        nonlocal told
        if time.monotonic() - told > TELL_EVERY_SECONDS:
            told = time.monotonic()
            print(f"{cache} cache: {done:,} of {of:,} pairs", file=sys.stderr, flush=True)

    return stopwatch.measure(plan, tell)


def _finding(cache: CacheName, measured: Measured, prompt_tokens: int) -> Finding:
    return Finding(
        cache=cache,
        audit=_separation(measured.audit),
        control=_separation(measured.control),
        prompt_tokens=prompt_tokens,
        broken=measured.broken,
        control_told=exact_checks.told(measured.control, exact_checks.own_tokens(measured.control)),
    )


def _separation(pairs: tuple[Pair, ...]) -> Separation:
    if len(pairs) < FEWEST_PAIRS:
        raise AuditFailed(f"Only {len(pairs)} pairs were measured in time.", "Give it more --minutes.")
    return separate([pair.cached.first_byte_us for pair in pairs], [pair.fresh.first_byte_us for pair in pairs])


def _first_model(attacker: Party) -> str:
    names = attacker.lines[0].models()
    if not names:
        raise AuditFailed("The attacker's key may call no model.", "Deploy one, or give another key.")
    return names[0]


def _say_costs(wish: Wish, found: Accounts, tokens: dict[CacheName, int]) -> None:
    """Say what is about to be sent, from the size of the first prompts."""
    requests = REQUESTS_OF_A_PAIR * (wish.pairs + min(wish.pairs, CONTROL_PAIRS))
    payers = f"by tenants of its own ({', '.join(found.made)})" if found.made else "by the tenants of the two keys"
    print(f"At most {wish.minutes:g} min at {wish.api_base}, paid {payers}:")
    for cache, prompt_tokens in tokens.items():
        said = f"{requests:,} requests of {prompt_tokens:,} prompt tokens and 1 token answered"
        print(f"  {cache} cache: {said}, {requests * prompt_tokens:,} prompt tokens in all")
    print("  and some 150 requests for what must hold exactly", flush=True)


def _pairs(text: str) -> int:
    count = int(text)
    if count < FEWEST_PAIRS:
        raise argparse.ArgumentTypeError(f"at least {FEWEST_PAIRS}")
    return count


def _new_file(text: str) -> Path:
    file = Path(text)
    if not file.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {file.parent}")
    return file
