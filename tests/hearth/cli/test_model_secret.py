"""`hearth model secret` stores a model's token for the hub, and prints it never."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalogue.models import Model
from tenants import registry
from tenants.audit import SYSTEM
from tests.hearth.cli.conftest import Hearth
from workers.models import Secret

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_token_is_set_from_a_file_and_removed(hearth: Hearth, tmp_path: Path) -> None:
    owner = registry.create_tenant(SYSTEM, slug="platform", name="Platform")
    Model.objects.create(name="llama", owner=owner)
    (tmp_path / "token").write_text("hf_secret\nand more\n")
    done = hearth("model", "secret", "llama", "--file", str(tmp_path / "token"))
    assert (done.returncode, done.stdout) == (0, "llama has a new token for the hub.\n")
    assert "hf_secret" not in done.stderr
    assert b"hf_secret" not in bytes(Secret.objects.get().sealed)
    removed = hearth("model", "secret", "llama", "--remove")
    assert (removed.returncode, removed.stdout) == (0, "llama has no token for the hub.\n")
    assert not Secret.objects.exists()
    both = hearth("model", "secret", "llama", "--remove", "--file", str(tmp_path / "token"))
    assert (both.returncode, "Give one of --file, --use and --remove" in both.stderr) == (2, True)
    unknown = hearth("model", "secret", "nobody", "--remove")
    assert (unknown.returncode, "There is no model 'nobody'" in unknown.stderr) == (1, True)


def test_a_named_secret_is_set_used_listed_and_removed(hearth: Hearth, tmp_path: Path) -> None:
    owner = registry.create_tenant(SYSTEM, slug="platform", name="Platform")
    Model.objects.create(name="llama", owner=owner)
    (tmp_path / "token").write_text("hf_secret\n")
    done = hearth("secret", "set", "hf-meta", "--file", str(tmp_path / "token"))
    assert (done.returncode, done.stdout) == (0, "hf-meta is set.\n"), done.stderr
    assert hearth("model", "secret", "llama", "--use", "hf-meta").stdout == "llama uses the secret hf-meta.\n"
    listed = hearth("secret", "list").stdout
    assert "hf-meta" in listed and "llama" in listed and "hf_secret" not in listed
    refused = hearth("secret", "remove", "hf-meta")
    assert (refused.returncode, "llama uses it" in refused.stderr) == (1, True)
    hearth("model", "secret", "llama", "--remove")
    assert hearth("secret", "remove", "hf-meta").stdout == "hf-meta is removed.\n"
