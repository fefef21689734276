"""``celery -A hearth fleet …`` as operators run it: processes of their own, the real database, no worker."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from celery.bin.control import _compile_arguments  # type: ignore[attr-defined]  # its stubs lack it
from celery.worker.control import Panel
from click.testing import CliRunner, Result
from django.db.models.functions import Now

import hearth.celery  # noqa: F401 - registers the commands
from hearth.cli.fleet import LIST_HELP
from hearth.cli.fleet import fleet as fleet_commands
from hearth.cli.output.fleet_tables import COLUMNS
from hearth.cli.output.text_table import duration, table
from tenants.audit import SYSTEM
from tenants.models import AuditEntry
from tests.workers.agent_processes import database_refusing_connections, database_url
from tests.workers.conftest import Fleet
from workers.fleet import operations
from workers.models import Deployment, Level, Node, Placeholder, Replica, ScaleDecision, Slot, StartTime, Weights
from workers.scheduler import reconciler

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]

COMMAND = [sys.executable, "-m", "celery", "-A", "hearth", "fleet"]


def environment() -> dict[str, str]:
    """Return what an operator's shell has, on the test database."""
    return os.environ | {"DATABASE_URL": database_url(), "COLUMNS": "200"}


def shell(*words: str) -> subprocess.CompletedProcess[str]:
    """Run one command as a process; none ever shows a traceback."""
    done = subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, timeout=100, env=environment(), check=False
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done


def run(*words: str) -> Result:
    """Run one command in this process, which saves the start of an interpreter."""
    done = CliRunner().invoke(fleet_commands, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def answer(*words: str) -> Any:
    """Return what a command that succeeds writes as JSON."""
    done = run(*words, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def keep_one_warm(fleet: Fleet) -> Placeholder:
    """Have one ready replica, one warm placeholder beside it, and what both have shown so far."""
    Node.objects.update(lease_expires_at=Now() + dt.timedelta(hours=1))
    deployment = fleet.deploy(1)
    operations.warm(SYSTEM, "local", 1, "h2")
    reconciler.tick()
    Replica.objects.update(state="ready", host="127.0.0.1", port=4711, generation=1)
    reconciler.tick()
    Placeholder.objects.update(state="warm", level=Level.H2, engine="simulated", memory_bytes=600 * 2**20)
    StartTime.objects.create(
        replica=Replica.objects.get(),
        revision=fleet.revision,
        pool=fleet.pool,
        level=Level.H2,
        seconds=4.2,
        process_seconds=3.9,
    )
    ScaleDecision.objects.create(
        deployment=deployment, action="up", from_replicas=0, to_replicas=1, reason="more tokens", inputs={"tokens": 9}
    )
    return Placeholder.objects.get()


def test_a_table_is_aligned_and_has_a_word_in_each_cell() -> None:
    assert table(("A", "BB"), [("one", ""), ("2", "x  y")]) == "A    BB\none  -\n2    x y"
    assert [duration(seconds) for seconds in (None, 0.85, 4.2, 185, 7800, 270_000)] == [
        "",
        "850ms",
        "4.2s",
        "3m05s",
        "2h10m",
        "3d03h",
    ]


def test_every_list_has_its_help() -> None:
    assert COLUMNS.keys() == LIST_HELP.keys() - {"status"}


def test_the_lists_say_what_is_there_as_tables_and_as_json(fleet: Fleet) -> None:
    placeholder = keep_one_warm(fleet)
    replica = Replica.objects.get()
    short = str(placeholder.id)[-6:]
    (shown,) = answer("placeholders")
    assert (shown["id"], shown["level"], shown["state"]) == (str(placeholder.id), "h2", "warm")
    assert shown["promotes"] == [{"deployment": "chat", "seconds": 4.2, "words": "up in 4 s"}]
    assert [(slot["device"], slot["holder"]) for slot in answer("slots")][:3] == [
        ("cpu-0", f"replica chat/{str(replica.id)[-6:]}"),
        ("cpu-1", f"placeholder {short}"),
        ("cpu-2", ""),
    ]
    Replica.objects.update(running_requests=3, max_requests=64)
    assert [(each["id"], each["max_requests"]) for each in answer("replicas")] == [(str(replica.id), 64)]
    assert "3/64" in shell("replicas").stdout.split()
    (pool,) = answer("pools")
    assert (pool["free"], pool["placeholders"], pool["placeholders_wanted"], pool["alive"]) == (2, 1, 1, 1)
    assert answer("decisions")[0]["inputs"] == {"tokens": 9}
    assert answer("starts") == [
        {
            "deployment": "chat",
            "model": "tiny-chat",
            "level": "h2",
            "count": 1,
            "median_seconds": 4.2,
            "p95_seconds": 4.2,
            "parts": dict.fromkeys(("fetch_seconds", "load_seconds", "compile_seconds", "warm_up_seconds")),
        }
    ]
    assert [event["to_state"] for event in answer("events", "--last", "2")] == ["reserved", "requested"]
    written = shell("placeholders").stdout.splitlines()
    assert written[0].split() == [
        "PLACEHOLDER",
        "NODE",
        "STATE",
        "FOR",
        "LEVEL",
        "ENGINE",
        "MEMORY",
        "PROMOTES",
        "REASON",
    ]
    assert written[1].startswith(f"{short}") and "chat up in 4 s" in written[1] and "600M" in written[1]


def test_status_says_what_is_not_well_by_its_exit_status_too(fleet: Fleet) -> None:
    keep_one_warm(fleet)
    well = run("status")
    assert well.exit_code == 0 and well.stdout.rstrip().endswith("All is well.")
    Replica.objects.update(state="suspect")
    Slot.objects.filter(device_uuid="cpu-3").update(health="quarantined", fault="xid 79")
    ill = run("status", "--json")
    assert ill.exit_code == 1
    assert json.loads(ill.stdout)["troubles"] == [
        "Deployment chat has 0 of 1 replicas ready.",
        "Slot cpu-3 of node n1 is quarantined: xid 79.",
    ]


def test_files_that_nodes_fetch_are_listed_and_one_that_fails_is_no_good_status(fleet: Fleet) -> None:
    keep_one_warm(fleet)
    Weights.objects.create(
        node=fleet.node, revision=fleet.revision, state="fetching", bytes_done=6_600_000_000, bytes_total=16_100_000_000
    )
    (shown,) = answer("weights")
    assert (shown["deployment"], shown["words"]) == ("chat", "fetching 40 % of 16.1 GB on node n1")
    assert "6.6GB" in run("weights").stdout and "16.1GB" in run("weights").stdout
    assert run("status").exit_code == 0
    Weights.objects.update(state="failed", error="no space: 9.5 GB are needed")
    assert json.loads(run("status", "--json").stdout)["troubles"] == [
        "Deployment chat: files cannot be fetched on node n1: no space: 9.5 GB are needed."
    ]
    Replica.objects.update(state="suspect")
    assert json.loads(run("status", "--json").stdout)["troubles"] == [
        "Deployment chat has 0 of 1 replicas ready: files cannot be fetched on node n1: no space: 9.5 GB are needed."
    ]


def test_verbs_are_done_once_and_audited_with_who_did_them(fleet: Fleet) -> None:
    placeholder = keep_one_warm(fleet)
    short = str(placeholder.id)[-6:]
    assert answer("scale", "chat", "1-4") == {
        "target": "deployment chat",
        "changed": True,
        "now": "wants 1 to 4 replicas, 1 at the present load",
    }
    again = shell("scale", "chat", "1-4")
    assert again.stdout == "deployment chat wants 1 to 4 replicas, 1 at the present load (no change)\n"
    entry = AuditEntry.objects.get(action="deployment.scaled")
    assert entry.actor.endswith(" by celery fleet") and entry.after == {"minimum": 1, "maximum": 4}
    assert answer("promote", short, "chat")["changed"]
    assert Replica.objects.get(placeholder=placeholder).state == "reserved"
    for words in (
        ("cordon", "n1"),
        ("uncordon", "n1"),
        ("warm", "local", "2", "h0"),
        ("target", "chat", "512", "1", "9"),
    ):
        assert answer(*words)["changed"]
    assert answer("drain", str(Replica.objects.get(placeholder=None).id))["changed"]
    assert Deployment.objects.get().target_tokens_per_replica == 512
    assert not Node.objects.get().cordoned


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("scale", "chatt", "1"), 1, "there is no deployment 'chatt'; there is chat"),
        (("scale", "chat", "many"), 1, "'many' is not a valid number of replicas or range like 1-4"),
        (("scale", "chat", "4-2"), 1, "“at most 2 replicas” is not allowed: use 4 to 1000"),
        (("drain", "nobody"), 1, "there is no replica 'nobody'"),
        (("restore", "n1", "gpu-9"), 1, "there is no slot 'n1 gpu-9'; there is cpu-0, cpu-1, cpu-2, cpu-3"),
        (("warm", "local", "1", "h7"), 1, "'h7' is not a valid placeholder level: use h0 or h2"),
        (("scale", "chat"), 2, "Missing argument"),
        (("slots", "--watch", "0"), 2, "not in the range"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_an_exit_status(
    fleet: Fleet, words: tuple[str, ...], status: int, said: str
) -> None:
    fleet.deploy(1)
    done = run(*words)
    assert (done.exit_code, done.stdout) == (status, "")
    assert said in done.stderr


def test_a_refusal_is_the_same_in_a_shell(fleet: Fleet) -> None:
    done = shell("cordon", "n7")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "celery fleet: there is no node 'n7'; there is n1\n"


def test_a_database_that_is_away_is_said_in_a_line(fleet: Fleet) -> None:
    with database_refusing_connections():
        listed, done = shell("slots"), shell("cordon", "n1")
    for refused in (listed, done):
        assert refused.returncode == 69 and refused.stdout == ""
        assert refused.stderr.startswith("celery fleet: the database does not respond: ")
        assert len(refused.stderr.splitlines()) == 1
    assert not Node.objects.get().cordoned


def test_watching_goes_on_until_ctrl_c(fleet: Fleet) -> None:
    with subprocess.Popen(
        [*COMMAND, "nodes", "--json", "--watch", "0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | {"PYTHONUNBUFFERED": "1"},
        # A shell that runs the tests in the background lets its children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - one thread so far
    ) as watching:
        assert watching.stdout is not None and watching.stderr is not None
        assert json.loads(watching.stdout.readline())[0]["cordoned"] is False
        Node.objects.update(cordoned=True)
        for line in watching.stdout:
            if json.loads(line)[0]["cordoned"]:
                break
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
        assert (watching.wait(timeout=60), watching.stderr.read()) == (0, "")


def test_a_pool_is_set_from_the_command_line(fleet: Fleet) -> None:
    done = run("pool", "set", "local", "gpu_type=L4", "slot_hour_usd=0.80")
    assert "gpu_type=L4" in done.stdout and "slot_hour_usd=0.80" in done.stdout
    assert "no change" in run("pool", "set", "local", "gpu_type=l4").stdout
    fleet.deploy(1)
    assert "requires gpu_types=L4" in run("require", "chat", "gpu_types=L4").stdout
    assert "requires nothing" in run("require", "chat").stdout
    (row,) = answer("pools")
    assert (row["gpu_type"], row["slot_hour_usd"]) == ("L4", "0.80")
    assert run("pool", "set", "local", "colour=red").exit_code == 1


def test_a_verb_with_several_words_takes_them_over_the_broker(fleet: Fleet) -> None:
    fleet.deploy(1)
    given = _compile_arguments("pool_set", ["local", "gpu_type=L4", "labels=net:ib", "priority=3"])
    assert "priority=3 " in Panel.data["pool_set"](None, **given)["ok"]
    given = _compile_arguments("require", ["chat", "gpu_types=L4", "labels=net:ib"])
    assert Panel.data["require"](None, **given)["ok"].endswith("requires gpu_types=L4 labels=net:ib")
    assert Panel.data["require"](None, **_compile_arguments("require", ["chat"]))["ok"].endswith("of its pools")
