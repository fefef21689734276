"""A stand-in for the Hugging Face Hub: one model with two commits, over its HTTP API. No network is used."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

MODEL = "org/known"
OLD, NEW = "a" * 40, "b" * 40


@dataclass
class Hub:
    """The model's folder, its branches by their commits, and what was asked for."""

    url: str
    folder: Path
    branches: dict[str, str] = field(default_factory=lambda: {"main": OLD})
    #: Files that were sent: the revision that was named, and the name.
    sent: list[tuple[str, str]] = field(default_factory=list)

    def commit(self, revision: str) -> str | None:
        """Return the commit of a branch or of a commit."""
        return self.branches.get(revision) or (revision if revision in {OLD, NEW} else None)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Hub]:
    """Serve the files of a folder as MODEL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.hub = hub = Hub(f"http://127.0.0.1:{server.server_address[1]}", folder)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer()

    def _answer(self) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path)
        if path.startswith(f"/{MODEL}/resolve/"):
            revision, _, name = path.removeprefix(f"/{MODEL}/resolve/").partition("/")
            self._file(hub, revision, name)
            return
        api = f"/api/models/{MODEL}"
        if not path.startswith(api):
            self._error(404, "RepoNotFound")
            return
        what, _, revision = path.removeprefix(api).strip("/").partition("/")
        commit = hub.commit(revision.split("/")[0] or "main")
        if commit is None:
            self._error(404, "RevisionNotFound")
            return
        found = [file for file in sorted(hub.folder.rglob("*")) if file.is_file()]
        files = [(file.relative_to(hub.folder).as_posix(), file.stat().st_size) for file in found]
        if what in {"tree", "paths-info"}:
            self._json([{"type": "file", "path": name, "size": size, "oid": commit} for name, size in files])
        else:
            siblings = [{"rfilename": name, "size": size} for name, size in files]
            self._json({"id": MODEL, "sha": commit, "siblings": siblings})

    def _file(self, hub: Hub, revision: str, name: str) -> None:
        commit, file = hub.commit(revision), hub.folder / name
        if commit is None or not file.is_file():
            self._error(404, "RevisionNotFound" if commit is None else "EntryNotFound", commit)
            return
        content = file.read_bytes()
        if self.command == "GET":
            hub.sent.append((revision, name))
        self._send(200, content, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": commit})

    def _json(self, found: object) -> None:
        self._send(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str, commit: str | None = None) -> None:
        self._send(status, b"{}", {"X-Error-Code": code} | ({"X-Repo-Commit": commit} if commit else {}))

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""
