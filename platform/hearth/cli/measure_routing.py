"""`hearth measure-routing`: compare two routing policies on live traffic."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

import click

from catalogue import routing_policy
from catalogue.routing_policy import BadPolicy, Comparison, RoutingPolicy
from hearth.checks.preflight import PreflightError
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table

if TYPE_CHECKING:
    from billing.reports.routing_comparison import Interval, Report  # its models need Django

#: How long the last requests may take to end and be stored before the report is made.
SETTLE_SECONDS = 2.0
#: What a metric is called, and how it is shown.
SHOWN = {
    "hit_rate": ("cached share of prompts, %", 100, 1),
    "ttft_p50_ms": ("TTFT p50, ms", 1, 0),
    "ttft_p90_ms": ("TTFT p90, ms", 1, 0),
    "ttft_p99_ms": ("TTFT p99, ms", 1, 0),
    "output_tokens_per_second": ("output tokens per second", 1, 1),
    "computed_prompt_tokens": ("prompt tokens computed per request", 1, 1),
    "amount_pico": ("charge per 1,000 requests", 1e-9, 4),
}


class Policy(click.ParamType):  # type: ignore[type-arg]  # generic in its stubs only
    """A routing policy, such as ``expected-seconds:displaced=0.5``."""

    name = "policy"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> RoutingPolicy:
        """Return the policy."""
        try:
            return routing_policy.parse(value)
        except BadPolicy as error:
            self.fail(f"{error}.", param, ctx)


@click.command("measure-routing", short_help="Compare two routing policies on live traffic.")
@click.argument("deployment")
@click.option("--policy", type=Policy(), help="Policy A. [the deployment's own]")
@click.option("--against", type=Policy(), help="Policy B.")
@click.option("--share", default=0.5, show_default=True, help="Share of the conversations that go by policy B.")
@click.option("--minutes", default=10.0, show_default=True, help="How long, at most a week.")
@click.option("--report", "instead", flag_value="report", help="Report on the last comparison, and change nothing.")
@click.option("--stop", "instead", flag_value="stop", help="End the comparison that runs, and report on it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def measure_routing(
    deployment: str,
    policy: RoutingPolicy | None,
    against: RoutingPolicy | None,
    *,
    share: float,
    minutes: float,
    instead: Literal["report", "stop"] | None,
    as_json: bool,
) -> None:
    """Route a part of a deployment's conversations by one policy and the rest by another, and report what each did.

    Every conversation stays with one policy. The comparison ends by itself, also without this command; Ctrl-C ends it.
    Then gateways route by the deployment's own policy again. docs/operations/routing.md explains policies and the
    report.

    \b
    Example:
      hearth measure-routing chat --against least-loaded --minutes 30
    """
    if (against is None) == (instead is None):
        raise click.UsageError("Give one of --against, --report and --stop.")
    with on_database("The routing policies are not compared"):
        from billing.reports import routing_comparison as reports
        from tenants import audit
        from workers.fleet import routing_comparison

        actor = audit.shell("hearth measure-routing")
        if instead == "stop":
            routing_comparison.stop(actor, deployment)
        elif against is not None:
            begun = routing_comparison.start(actor, deployment, policy, against, share=share, minutes=minutes)
            if not _wait(deployment, begun):
                routing_comparison.stop(actor, deployment)
        model, comparison = routing_comparison.last(deployment)
        found = reports.of(model, comparison)
    print(json.dumps(asdict(found), indent=2, default=str) if as_json else _text(found))


def _wait(deployment: str, comparison: Comparison) -> bool:
    """Wait for the end of a comparison; return False if the user does not."""
    from django.db import connection

    connection.close()
    until = time.strftime("%H:%M:%S", time.localtime(comparison.until))
    click.echo(f"{deployment}: {comparison.policy} against {comparison.against} until {until}", err=True)
    with suppress(KeyboardInterrupt):
        time.sleep(max(0.0, comparison.until - time.time()) + SETTLE_SECONDS)
        return True
    return False


def _text(report: Report) -> str:
    if not report.a.requests or not report.b.requests:
        raise PreflightError(
            f"{report.model} has {report.a.requests} complete requests by policy A and {report.b.requests} by B.",
            "Compare for longer, or with another share; usage is stored a moment after each request.",
        )
    counts = [
        ("requests", f"{report.a.requests:,}", f"{report.b.requests:,}", ""),
        ("not completed", f"{report.a.failed:,}", f"{report.b.failed:,}", ""),
        ("groups of conversations", f"{report.a.groups:,}", f"{report.b.groups:,}", ""),
    ]
    rows = [
        (title, *(_cell(each[name], scale, digits) for each in (report.a.metrics, report.b.metrics, report.difference)))
        for name, (title, scale, digits) in SHOWN.items()
    ]
    differs = [SHOWN[name][0] for name, each in report.difference.items() if each is not None and each.excludes_zero]
    return "\n".join(
        [
            f"{report.model}, {report.began:%Y-%m-%d %H:%M:%S} to {report.until:%H:%M:%S} UTC, "
            f"{report.share:.0%} of the conversations by B",
            f"A  {report.a.policy}",
            f"B  {report.b.policy}",
            "",
            table(("", "A", "B", "B - A"), [*counts, *rows]),
            "",
            f"Of {len(SHOWN)} metrics these differ, each with 95 % confidence: {'; '.join(differs) or 'none'}.",
        ]
    )


def _cell(interval: Interval | None, scale: float, digits: int) -> str:
    if interval is None:
        return ""
    shown = f"{interval.value * scale:,.{digits}f}"
    if interval.low is None or interval.high is None:
        return shown
    return f"{shown} [{interval.low * scale:,.{digits}f}, {interval.high * scale:,.{digits}f}]"
