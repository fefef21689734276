"""`hearth mail`, run as an operator runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hearth.cli.conftest import Hearth

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.long
def test_a_test_reaches_the_server_or_says_why_not(
    hearth_process: Hearth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = hearth_process("mail", "test", "ada@example.com")
    assert (refused.returncode, "HEARTH_EMAIL_URL is not set." in refused.stderr) == (1, True)
    monkeypatch.setenv("HEARTH_EMAIL_URL", f"file://{tmp_path}/mail")
    monkeypatch.setenv("HEARTH_EMAIL_FROM", "hearth@example.com")
    done = hearth_process("mail", "test", "ada@example.com")
    assert (done.returncode, done.stdout) == (0, "The server took an e-mail to ada@example.com.\n")
    (message,) = (tmp_path / "mail").iterdir()
    assert "From: hearth@example.com" in message.read_text()
    assert hearth_process("mail", "test", "nobody").returncode == 1
    monkeypatch.setenv("HEARTH_EMAIL_URL", "smtp+plain://127.0.0.1:1")
    refused = hearth_process("mail", "test", "ada@example.com")
    assert (refused.returncode, "did not take it" in refused.stderr) == (1, True)
    monkeypatch.setenv("HEARTH_EMAIL_URL", "http://mail.example.com")
    refused = hearth_process("mail", "log")
    assert (refused.returncode, "HEARTH_EMAIL_URL" in refused.stderr) == (1, True)
    monkeypatch.setenv("HEARTH_EMAIL_URL", "")
    assert "STATE" in hearth_process("mail", "log").stdout
