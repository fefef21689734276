"""`hearth explain-route --body`, run as an operator runs it; what it decides is tested with the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.tenants import MODEL
from tests.hearth.cli.conftest import Hearth

pytestmark = pytest.mark.django_db(transaction=True)


def test_what_cannot_be_decided_says_why(hearth: Hearth, tmp_path: Path) -> None:
    world, body = tenants.build(), tmp_path / "request.json"
    body.write_text(f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "Hello"}}]}}')
    unknown = hearth("explain-route", "--body", str(body), "--key", "hk_nobody_secret")
    assert (unknown.returncode, "The API key 'nobody' cannot be used: unknown." in unknown.stderr) == (1, True)
    assert "secret" not in unknown.stdout + unknown.stderr
    unready = hearth("explain-route", "--body", str(body), "--key", world.acme.key.public_id)
    assert (unready.returncode, f"No replica of '{MODEL}' is ready yet" in unready.stderr) == (1, True)
