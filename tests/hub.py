"""A stand-in for the Hugging Face Hub: one model with two commits, over its HTTP API. No network is used.

A file of LARGE_BYTES or more is one of Git LFS, as weights are: the hub says its SHA-256 and sends parts of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

MODEL = "org/known"
OLD, NEW = "a" * 40, "b" * 40
LARGE_BYTES = 64 * 1024


@dataclass
class Hub:
    """The model's folder, its branches by their commits, and what was asked for."""

    url: str
    folder: Path
    branches: dict[str, str] = field(default_factory=lambda: {"main": OLD})
    #: Files that were sent: the revision that was named, and the name.
    sent: list[tuple[str, str]] = field(default_factory=list)
    #: Where each large file that was sent began.
    begun_at: list[int] = field(default_factory=list)
    #: The tokens that were sent, in the order of the requests; None for none.
    tokens: list[str | None] = field(default_factory=list)
    #: Only this token may read the model; empty: everybody may.
    gated: str = ""
    #: Another host, to which the hub redirects readers of large files.
    storage: str = ""
    #: The model is not there any more.
    gone: bool = False
    #: Names of files that are sent with other bytes than their SHA-256 says.
    corrupt: set[str] = field(default_factory=set)
    #: Other names than the files have, as the model's list says them.
    listed_names: dict[str, str] = field(default_factory=dict)
    #: Other sizes than the files have, as the model's list says them.
    listed_sizes: dict[str, int] = field(default_factory=dict)
    #: Large files stop after this many bytes of a response until ``go_on`` is set.
    pause_after_bytes: int | None = None
    go_on: threading.Event = field(default_factory=threading.Event)

    def commit(self, revision: str) -> str | None:
        """Return the commit of a branch or of a commit."""
        return self.branches.get(revision) or (revision if revision in {OLD, NEW} else None)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Hub]:
    """Serve the files of a folder as MODEL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.hub = hub = Hub(f"http://127.0.0.1:{server.server_address[1]}", folder)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.go_on.set()
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
        resolve, api = f"/{MODEL}/resolve/", f"/api/models/{MODEL}"
        if hub.gone or not path.startswith((resolve, api)):
            self._error(404, "RepoNotFound")
            return
        sent = self.headers.get("Authorization")
        hub.tokens.append(sent.removeprefix("Bearer ") if sent else None)
        if hub.gated and hub.tokens[-1] != hub.gated:
            self._error(403 if sent else 401, "GatedRepo")
            return
        if path.startswith(resolve):
            revision, _, name = path.removeprefix(resolve).partition("/")
            self._file(hub, revision, name)
            return
        what, _, revision = path.removeprefix(api).strip("/").partition("/")
        commit = hub.commit(revision.split("/")[0] or "main")
        if commit is None:
            self._error(404, "RevisionNotFound")
            return
        files = [file for file in sorted(hub.folder.rglob("*")) if file.is_file()]
        if what in {"tree", "paths-info"}:
            self._json([{"type": "file", "path": name} | facts for name, facts in _described(hub, files)])
        else:
            siblings = [{"rfilename": name} | facts for name, facts in _described(hub, files)]
            self._json({"id": MODEL, "sha": commit, "siblings": siblings})

    def _file(self, hub: Hub, revision: str, name: str) -> None:
        commit, file = hub.commit(revision), hub.folder / name
        if commit is None or not file.is_file():
            self._error(404, "RevisionNotFound" if commit is None else "EntryNotFound", commit)
            return
        content = file.read_bytes()
        headers = {"ETag": f'"{_sha256(file)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if name in hub.corrupt:
            content = content[:-1] + bytes([content[-1] ^ 1])
        if self.command == "GET":
            hub.sent.append((revision, name))
        if hub.storage and len(content) >= LARGE_BYTES and self.command == "GET":
            self._send(302, b"", {"Location": f"{hub.storage}{self.path}"})
            return
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        begin = int(asked[1]) if asked else 0
        if len(content) >= LARGE_BYTES and self.command == "GET":
            hub.begun_at.append(begin)
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        self._send(206 if begin else 200, content[begin:], headers)

    def _json(self, found: object) -> None:
        self._send(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str, commit: str | None = None) -> None:
        self._send(status, b"{}", {"X-Error-Code": code} | ({"X-Repo-Commit": commit} if commit else {}))

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        paused = hub.pause_after_bytes if len(body) >= LARGE_BYTES else None
        with contextlib.suppress(ConnectionError):  # the client may have been killed
            self.wfile.write(body[:paused])
            self.wfile.flush()
            if paused is not None:
                hub.go_on.wait()
                self.wfile.write(body[paused:])

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""


def _described(hub: Hub, files: list[Path]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the name of each file and what the hub says of it."""
    for file in files:
        name = file.relative_to(hub.folder).as_posix()
        size = hub.listed_sizes.get(name, file.stat().st_size)
        facts: dict[str, object] = {"size": size, "oid": "c" * 40, "blobId": "c" * 40}
        if size >= LARGE_BYTES:
            lfs = {"size": size, "pointerSize": 134}
            facts["lfs"] = lfs | {"sha256": _sha256(file), "oid": _sha256(file)}
        yield hub.listed_names.get(name, name), facts


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
