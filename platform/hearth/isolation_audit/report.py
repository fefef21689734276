"""The report of an audit: Markdown for people, and JSON with every measured time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hearth.isolation_audit import verdict
from hearth.isolation_audit.auc import CONFIDENCE, Area, Separation
from hearth.isolation_audit.exact_checks import Check
from hearth.isolation_audit.timing_attack import Measured, Pair
from hearth.isolation_audit.verdict import CONTROL_AUC, TARGET_BOUND, TARGET_PAIRS, Finding, Outcome

SENTENCES: dict[Outcome, str] = {
    "isolated": "Isolated: neither responses nor response times reveal another tenant's prompts.",
    "leak": "Leak: responses or response times reveal something about another tenant's prompts.",
    "inconclusive": "Inconclusive: the response times neither show a leak nor rule one out.",
}
#: Counterexamples shown for each check.
SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """A complete audit. ``scopes_skipped``: keys were given, so keys within one tenant were not compared."""

    api_base: str
    model: str
    began: str
    minutes: float
    seed: int
    accounts: str
    findings: tuple[Finding, ...]
    measured: tuple[Measured, ...]
    checks: tuple[Check, ...]
    scopes_skipped: bool

    @property
    def outcome(self) -> Outcome:
        return verdict.outcome(self.findings, self.checks)


def markdown(audit: Audit) -> str:
    """Return the report as Markdown."""
    head = [
        "# Isolation audit",
        "",
        f"**{SENTENCES[audit.outcome]}**",
        "",
        f"{audit.began}, {audit.minutes:.0f} min, {audit.api_base}, model {audit.model}, {audit.accounts}.",
        "",
        "## Times to the first byte",
        "",
        "The victim sends a new prompt. Then the attacker sends the same prompt and a new one, in random order.",
        "AUC: the probability that the new prompt takes longer, over all times; 0.5 is guessing. Within pairs: the",
        "share of pairs in which it takes longer. Control: the AUC against the attacker's own cache, and how many",
        f"responses report that they were cached. Intervals are two-sided, at {CONFIDENCE:.0%}; the bound is the end",
        "farther from 0.5.",
        "",
        "| cache | pairs | AUC | interval | bound | allowed | within pairs | KS p | control (reported) | outcome |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *map(_row, audit.findings),
        "",
        *(_explained(finding) for finding in audit.findings),
        "## Exact checks",
        "",
        *map(_check, audit.checks),
    ]
    if audit.scopes_skipped:
        head.append(
            "- not tested: what keys and projects of one tenant share; run the audit without keys, as the operator"
        )
    return "\n".join(head) + "\n"


def document(audit: Audit) -> dict[str, Any]:
    """Return all results as JSON; each pair is [victim µs, cached µs, fresh µs, cached was first, connection]."""
    return {
        "outcome": audit.outcome,
        "exit_status": verdict.EXIT_STATUS[audit.outcome],
        "confidence": CONFIDENCE,
        "api_base": audit.api_base,
        "model": audit.model,
        "began": audit.began,
        "minutes": round(audit.minutes, 2),
        "seed": audit.seed,
        "accounts": audit.accounts,
        "checks": [asdict(check) | {"holds": check.holds} for check in audit.checks],
        "scopes_skipped": audit.scopes_skipped,
        "caches": {
            finding.cache: _figures(finding) | _samples(measured)
            for finding, measured in zip(audit.findings, audit.measured, strict=True)
        },
    }


def _figures(finding: Finding) -> dict[str, Any]:
    return {
        "outcome": finding.outcome,
        "audit": _separation(finding.audit),
        "control": _separation(finding.control) | {"told": finding.control_hits},
        "bound_allowed": finding.allowed,
        "prompt_tokens": finding.prompt_tokens,
        "pairs_made_again": finding.broken,
    }


def _separation(found: Separation) -> dict[str, Any]:
    areas = {name: asdict(area) | {"bound": area.bound} for name, area in _areas(found)}
    return {"pairs": found.pairs, **areas, "ks_distance": found.distance, "ks_p": found.p_value}


def _areas(found: Separation) -> tuple[tuple[str, Area], tuple[str, Area]]:
    return ("pooled", found.pooled), ("paired", found.paired)


def _samples(measured: Measured) -> dict[str, Any]:
    return {"audit_pairs": list(map(_pair, measured.audit)), "control_pairs": list(map(_pair, measured.control))}


def _pair(pair: Pair) -> list[float | bool | int]:
    times = [round(each.first_byte_us, 1) for each in (pair.victim, pair.cached, pair.fresh)]
    return [*times, pair.cached_first, pair.connection]


def _row(finding: Finding) -> str:
    audit, control = finding.audit, finding.control
    cells = [
        finding.cache,
        f"{audit.pairs:,}",
        f"{audit.pooled.auc:.4f}",
        f"{audit.pooled.lower:.4f} to {audit.pooled.upper:.4f}",
        f"{audit.pooled.bound:.4f}",
        f"{finding.allowed:.4f}",
        f"{audit.paired.auc:.4f} ({audit.paired.lower:.4f} to {audit.paired.upper:.4f})",
        f"{audit.p_value:.2f}",
        f"{control.pooled.auc:.4f} ({finding.control_hits:,} of {control.pairs:,})",
        finding.outcome,
    ]
    return f"| {' | '.join(cells)} |"


def _explained(finding: Finding) -> str:
    if finding.outcome == "leak":
        return (
            f"The response times reveal what the {finding.cache} cache holds for another tenant. By chance, 1 or 2 of "
            "100 audits report this: run the audit again before you act.\n"
        )
    if not finding.works and finding.control_hits < finding.control.pairs / 2:
        return (
            f"Only {finding.control_hits:,} of the attacker's own {finding.control.pairs:,} repeated requests were "
            f"reported as hits of the {finding.cache} cache: the cache policy of that key may be off, or several "
            "replicas serve the model.\n"
        )
    if not finding.works:
        return (
            f"The {finding.cache} audit cannot detect the attacker's own cache reliably (it needs an AUC of "
            f"{CONTROL_AUC}): the machine is too busy, or the cache saves too little time. Increase --prefix-words.\n"
        )
    if finding.outcome == "inconclusive":
        return f"The {finding.cache} audit needs more pairs, or exceeded its bound by chance: run the audit again.\n"
    if finding.outcome == "isolated" and finding.audit.pairs < TARGET_PAIRS:
        return f"A bound of {TARGET_BOUND} needs {TARGET_PAIRS:,} pairs; the {finding.cache} audit had fewer.\n"
    return ""


def _check(check: Check) -> str:
    if check.holds:
        return f"- holds ({check.tried:,} tests): {check.name}"
    broken = len(check.against)
    more = f" and {broken - SHOWN:,} more" if broken > SHOWN else ""
    return f"- **violated** ({broken:,} of {check.tried:,}): {check.name}: {'; '.join(check.against[:SHOWN])}{more}"
