"""Pictures of pages, for the documentation."""

from __future__ import annotations

import os
from pathlib import Path

from playwright.sync_api import Page


def keep_picture(page: Page, name: str) -> None:
    """Keep a screenshot where HEARTH_TEST_PICTURES names a folder, such as docs/images."""
    folder = os.environ.get("HEARTH_TEST_PICTURES")
    if folder:
        page.screenshot(path=str(Path(folder) / f"{name}.png"), animations="disabled")
