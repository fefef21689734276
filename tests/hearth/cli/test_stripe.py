"""`hearth stripe`, run as an operator runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hearth.cli.conftest import Hearth


@pytest.mark.django_db(transaction=True)
def test_what_is_refused_says_what_to_do(hearth: Hearth, tmp_path: Path) -> None:
    assert "No issuer is connected with Stripe" in hearth("stripe", "status").stdout
    assert hearth("stripe", "push", "2024-01").stdout == "No tenant's issuer is Stripe in 2024-01.\n"
    assert hearth("stripe", "reconcile").returncode == 0
    key = tmp_path / "key"
    key.write_text("pk_test_public\n")
    missing = hearth("stripe", "connect", "--key-file", str(key))
    assert (missing.returncode, "There is no issuer 'default'" in missing.stderr) == (1, True)
    hearth("issuer", "set", "berlin", "--legal-name", "Example", "--city", "Berlin", "--country", "DE")
    wrong = hearth("stripe", "connect", "berlin", "--key-file", str(key))
    assert (wrong.returncode, "this is no secret key; one begins with sk_test_" in wrong.stderr) == (1, True)
    assert "pk_test_public" not in wrong.stderr
    unconnected = hearth("stripe", "reconcile", "--issuer", "berlin")
    assert "Connect it: hearth stripe connect berlin." in unconnected.stderr
