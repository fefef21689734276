"""``hearth audit-isolation``: what can one tenant learn about another tenant's prompts on this deployment?

Follows "Auditing Prompt Caching in Language Model APIs" (arXiv 2502.07776).
"""

from __future__ import annotations

import json
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hearth.instance.instance import from_environment
from hearth.isolation_audit import accounts, exact_checks, report
from hearth.isolation_audit.accounts import Accounts
from hearth.isolation_audit.auc import Separation, separate
from hearth.isolation_audit.errors import AuditFailed
from hearth.isolation_audit.exact_checks import Check
from hearth.isolation_audit.prompts import CACHES, CacheName, PromptGenerator
from hearth.isolation_audit.report import Audit
from hearth.isolation_audit.timing_attack import CONTROL_PAIRS, Measured, MeasurementPlan, Pair, Tenant, Timer
from hearth.isolation_audit.verdict import EXIT_STATUS, TARGET_PAIRS, Finding

FEWEST_PAIRS = 10
#: Interval of the progress lines.
PROGRESS_SECONDS = 30.0
REQUESTS_PER_PAIR = 3


class _NewFile(click.Path):
    """A file to write, in a folder that exists."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Fails when its folder does not exist."""
        file = Path(value)
        if not file.parent.is_dir():
            self.fail(f"the folder {file.parent} does not exist", param, ctx)
        return file


NEW_FILE = _NewFile(dir_okay=False)
_EXISTING = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """The options of the command line. An empty ``model`` means the first one that the attacker may call."""

    api_base: str
    model: str
    caches: tuple[CacheName, ...]
    pairs: int
    prefix_words: int
    minutes: float


@click.command("audit-isolation", short_help="Try to detect another tenant's cached prompts.")
@click.option(
    "--pairs", type=click.IntRange(min=FEWEST_PAIRS), default=TARGET_PAIRS, show_default=True, help="Pairs per cache."
)
@click.option("--cache", type=click.Choice((*CACHES, "both")), default="both", show_default=True, help="Which cache.")
@click.option("--model", default="", help="Model to call. Default: the first that the attacker may call.")
@click.option("--prefix-words", default=500, show_default=True, help="Words that the prompts of a pair share.")
@click.option("--minutes", default=60.0, show_default=True, help="Stop after this time and report what was measured.")
@click.option("--url", default="", help="Address of the inference API. Default: this instance.")
@click.option("--victim-key-file", type=_EXISTING, help="File with the key of the attacked tenant.")
@click.option("--attacker-key-file", type=_EXISTING, help="File with the key of the attacking tenant.")
@click.option("--json", "json_file", type=NEW_FILE, metavar="FILE", help="Write all measurements as JSON.")
@click.option("--report", "report_file", type=NEW_FILE, metavar="FILE", help="Write the report as Markdown.")
def audit_isolation(
    victim_key_file: Path | None,
    attacker_key_file: Path | None,
    json_file: Path | None,
    report_file: Path | None,
    **given: Any,
) -> None:
    """Try to distinguish another tenant's cached prompts from new ones.

    Uses x-cache, cached tokens and the time to the first byte, through the gateway of a running deployment. As the
    operator, on the instance of HEARTH_DATA_DIR, it creates tenants named isolation-audit-… and archives them at the
    end. It changes nothing else, but its prompts take space in the engines' prefix caches. With the keys of two tenants
    in files it runs against any address, and these tenants pay. It prints what it will send before it starts.

    Exit status: 0 isolated, 1 the audit failed, 2 wrong arguments, 3 a leak, 4 inconclusive.
    """
    instance = from_environment()
    options = AuditOptions(
        api_base=given["url"] or instance.api_base,
        model=given["model"],
        caches=CACHES if given["cache"] == "both" else (given["cache"],),
        pairs=given["pairs"],
        prefix_words=given["prefix_words"],
        minutes=given["minutes"],
    )
    keys = accounts.from_key_files(victim_key_file, attacker_key_file)
    whose: AbstractContextManager[Accounts] = (
        nullcontext(keys) if keys else accounts.temporary_tenants(instance, options.model)
    )
    with _clean_stop(), whose as found:
        audit = run_audit(options, found)
    text = report.markdown(audit)
    print(f"\n{text}")
    if report_file:
        report_file.write_text(text)
    if json_file:
        json_file.write_text(json.dumps(report.document(audit)) + "\n")
    sys.exit(EXIT_STATUS[audit.outcome])


def run_audit(options: AuditOptions, found: Accounts) -> Audit:
    """Run the exact checks and the measurements. Raises AuditFailed."""
    began, until = time.time(), time.monotonic() + options.minutes * 60
    seed = secrets.randbits(64)
    with ExitStack() as cleanup:
        victim, attacker = (
            cleanup.enter_context(closing(Tenant.at(options.api_base, key))) for key in (found.victim, found.attacker)
        )
        generator = PromptGenerator(model=options.model or _first_model(attacker), prefix_words=options.prefix_words)
        timer = Timer(generator, victim, attacker)
        tokens = {cache: timer.warm_up(cache).prompt_tokens for cache in options.caches}
        _print_costs(options, found, tokens)
        checks = _exact_checks(options, found, generator, victim, attacker)
        measured = {cache: _measure(options, cache, timer, seed, until) for cache in options.caches}
    findings = tuple(_finding(cache, each, tokens[cache]) for cache, each in measured.items())
    timed = [
        exact_checks.timed_responses(cache, each.audit, exact_checks.own_tokens(each.audit))
        for cache, each in measured.items()
    ]
    return Audit(
        api_base=options.api_base,
        model=generator.model,
        began=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(began)),
        minutes=(time.time() - began) / 60,
        seed=seed,
        accounts=f"tenants {', '.join(found.created_slugs)}" if found.created_slugs else "keys of two tenants",
        findings=findings,
        measured=tuple(measured.values()),
        checks=(*timed, *checks),
        scopes_skipped=not found.scopes,
    )


@contextmanager
def _clean_stop() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that the created tenants are archived. Raises AuditFailed for either."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as error:
        raise AuditFailed("The audit was stopped before it had a result.") from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _exact_checks(
    options: AuditOptions, found: Accounts, generator: PromptGenerator, victim: Tenant, attacker: Tenant
) -> tuple[Check, ...]:
    return (
        exact_checks.attacks(generator, victim, attacker),
        exact_checks.concurrent_requests(generator, victim, attacker),
        *(exact_checks.scope(generator, options.api_base, keys) for keys in found.scopes),
    )


def _measure(options: AuditOptions, cache: CacheName, timer: Timer, seed: int, until: float) -> Measured:
    """Measure one cache within its share of the remaining time."""
    now, later = time.monotonic(), len(options.caches) - options.caches.index(cache)
    plan = MeasurementPlan(
        cache=cache,
        pairs=options.pairs,
        control_pairs=min(options.pairs, CONTROL_PAIRS),
        seed=seed,
        until=now + (until - now) / later,
    )
    reported = now

    def report_progress(done: int, total: int) -> None:
        nonlocal reported
        if time.monotonic() - reported > PROGRESS_SECONDS:
            reported = time.monotonic()
            print(f"{cache} cache: {done:,} of {total:,} pairs", file=sys.stderr, flush=True)

    return timer.measure(plan, report_progress)


def _finding(cache: CacheName, measured: Measured, prompt_tokens: int) -> Finding:
    return Finding(
        cache=cache,
        audit=_separation(measured.audit),
        control=_separation(measured.control),
        prompt_tokens=prompt_tokens,
        broken=measured.broken,
        control_hits=exact_checks.hits_reported(measured.control, exact_checks.own_tokens(measured.control)),
    )


def _separation(pairs: tuple[Pair, ...]) -> Separation:
    if len(pairs) < FEWEST_PAIRS:
        raise AuditFailed(f"Only {len(pairs)} pairs were measured in time.", "Increase --minutes.")
    return separate([pair.cached.first_byte_us for pair in pairs], [pair.fresh.first_byte_us for pair in pairs])


def _first_model(attacker: Tenant) -> str:
    names = attacker.probes[0].models()
    if not names:
        raise AuditFailed("The attacker's key may not call any model.", "Deploy a model, or give another key.")
    return names[0]


def _print_costs(options: AuditOptions, found: Accounts, tokens: dict[CacheName, int]) -> None:
    """Print what the audit will send, estimated from the size of the first prompts."""
    requests = REQUESTS_PER_PAIR * (options.pairs + min(options.pairs, CONTROL_PAIRS))
    payers = (
        f"by tenants of its own ({', '.join(found.created_slugs)})"
        if found.created_slugs
        else "by the tenants of the two keys"
    )
    print(f"At most {options.minutes:g} min at {options.api_base}, paid by {payers}:")
    for cache, prompt_tokens in tokens.items():
        said = f"{requests:,} requests with {prompt_tokens:,} prompt tokens and 1 output token each"
        print(f"  {cache} cache: {said}, {requests * prompt_tokens:,} prompt tokens in total")
    print("  exact checks: about 150 requests", flush=True)
