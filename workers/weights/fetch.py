"""Fetch the files of one commit of a model into this node's cache of the hub: ``python -m workers.weights.fetch``.

A process of its own, so that it outlives the agent and can be ended at any moment. It reads a job from its standard
input and writes reports to its standard output (``workers.weights.job``). The cache is that of ``huggingface_hub``,
which the engine reads: ``HF_HOME``, or ``.cache/huggingface`` in the home.

Large files are fetched here, because the library starts a file again that it did not finish: a partial file stays, and
the next process continues it. It gets its name in the cache once its size and its SHA-256 are those that the hub says.
The library does the rest: small files, files too large for one HTTP response, the links of the snapshot, and locks.
No Django here.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import hashlib
import os
import re
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Literal

import huggingface_hub
from huggingface_hub import constants, errors, file_download
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import WeakFileLock, build_hf_headers  # type: ignore[attr-defined]  # exported, unlisted

from workers.weights import cached, choice, job
from workers.weights.cached import File
from workers.weights.job import Job, Report

REPORT_SECONDS = 1.0
HUB_TIMEOUT_SECONDS = 20.0
#: Files at the same time; one connection does not fill a fast line.
MOST_DOWNLOADS = 4
#: Stays free for logs and databases that share the disk.
RESERVE_BYTES = 256 << 20
_PR_SET_DUMPABLE = 4
_COMMIT = re.compile(r"[0-9a-f]{40}")


class CannotFetch(Exception):
    """The files cannot be fetched now; the text says why and what to do."""


class _Refused(CannotFetch):
    """The hub does not give the files to this token, or has none."""


class Fetch:
    """One job. ``files`` is empty until the hub has listed them."""

    def __init__(self, given: Job) -> None:
        self._job = given
        cache = Path(constants.HF_HUB_CACHE).expanduser()
        folder = file_download.repo_folder_name(repo_id=given.source, repo_type="model")
        self._cache = cache
        self._repository = cache / folder
        self._locks = cache / ".locks" / folder
        self._snapshot = self._repository / "snapshots" / given.commit
        self._checked: set[str] = set()
        self._bytes_before: int | None = None
        self.files: tuple[File, ...] = ()

    def run(self) -> Report:
        """Fetch what is missing, check everything, and return the last report. Raises CannotFetch, OSError."""
        try:
            self.files = self._listed()
        except (_HubSilent, _Refused) as why:
            self.files = self._cached(why)
        for file in self.files:
            self._drop_if_damaged(file)
        self._bytes_before = self._bytes_done()
        if any(not self._pointer(file).exists() for file in self.files):
            self._require_space()
            self._download()
        for file in self.files:
            if not self._is_whole(file):
                self._drop(file)
                raise CannotFetch(f"{file.name} was damaged on its way and is removed; it is fetched again")
        return self.report("done", folder=str(self._snapshot))

    def report(
        self, state: Literal["fetching", "done", "failed"] = "fetching", *, folder: str = "", error: str = ""
    ) -> Report:
        """Return how far it is."""
        done = self._bytes_done()
        return Report(
            state=state,
            bytes_done=done,
            bytes_total=self._bytes_total if self.files else None,
            bytes_fetched=0 if self._bytes_before is None else max(0, done - self._bytes_before),
            folder=folder,
            error=error[: job.LONGEST_ERROR],
        )

    @property
    def _bytes_total(self) -> int:
        return sum(file.size for file in self.files)

    def _bytes_done(self) -> int:
        """Return how much of the files is on the disk."""
        return sum(self._present(file) for file in self.files)

    def _listed(self) -> tuple[File, ...]:
        """Return the files to fetch, as the hub lists the commit. Raises CannotFetch, _HubSilent.

        Names and hashes become paths, so those that would lead elsewhere are refused.
        """
        source, commit = self._job.source, self._job.commit
        if not _COMMIT.fullmatch(commit):
            raise CannotFetch(f"{commit!r} is no commit; deploy {source} again")
        try:
            found = huggingface_hub.HfApi(token=self._job.token).model_info(
                source, revision=commit, files_metadata=True, timeout=HUB_TIMEOUT_SECONDS
            )
        except errors.HfHubHTTPError as error:
            raise self._refused(error) from error
        except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # of its HTTP client
            raise _HubSilent(f"{constants.ENDPOINT} does not answer ({type(error).__name__})") from error
        listed = {each.rfilename: each for each in found.siblings or []}
        names = choice.chosen(listed, self._job.load_format)
        files = tuple(_file(listed[name]) for name in names)
        if wrong := next((file for file in files if not file.is_safe), None):
            raise CannotFetch(f"{constants.ENDPOINT} lists a file that cannot be stored: {wrong.name!r}")
        return files

    def _refused(self, error: errors.HfHubHTTPError) -> Exception:
        status, source = error.response.status_code, self._job.source
        said = f"{constants.ENDPOINT} says {status}" + (f": {error.server_message}" if error.server_message else "")
        if isinstance(error, errors.RevisionNotFoundError):
            return _Refused(f"{source} has no commit {self._job.commit} ({said}); deploy it again")
        if status in (401, 403) or isinstance(error, errors.GatedRepoError):
            return _Refused(
                f"{source} is gated or private, or does not exist ({said}); accept its licence there and set a token "
                "with `hearth model secret`"
            )
        if status == 404:
            return _Refused(f"{source} does not exist ({said}), or needs a token: `hearth model secret`")
        return _HubSilent(said)

    def _cached(self, why: Exception) -> tuple[File, ...]:
        """Return the files if the cache has all of them, else raise CannotFetch with why the hub does not give them."""
        if found := cached.files(self._job, self._snapshot):
            return found
        if isinstance(why, CannotFetch):
            raise why
        raise CannotFetch(f"{why}, and {self._cache} does not have all files of {self._job.source}")

    def _require_space(self) -> None:
        """Raise CannotFetch if the disk cannot hold what is missing."""
        self._repository.mkdir(parents=True, exist_ok=True)
        needed = self._bytes_total - self._bytes_done()
        free = shutil.disk_usage(self._repository).free - RESERVE_BYTES
        if free < needed:
            raise CannotFetch(
                f"no space: {_gigabytes(needed)} are needed in {self._cache}, and {_gigabytes(max(0, free))} are free; "
                "remove models with `hf cache`, or set HF_HOME to a larger disk"
            )

    def _download(self) -> None:
        """Download what is missing. Raises CannotFetch, OSError."""
        large = [file for file in self.files if file.sha256 and file.size <= constants.MAX_HTTP_DOWNLOAD_SIZE]
        pool = ThreadPoolExecutor(MOST_DOWNLOADS)  # without `with`, which would wait for the others if one fails
        for each in as_completed([pool.submit(self._download_large, file) for file in large]):
            each.result()
        try:
            huggingface_hub.snapshot_download(
                self._job.source,
                revision=self._job.commit,
                token=self._job.token,
                allow_patterns=[glob.escape(file.name) for file in self.files],
                max_workers=MOST_DOWNLOADS,
            )
        except errors.HfHubHTTPError as error:
            raise CannotFetch(str(self._refused(error))) from error

    def _download_large(self, file: File) -> None:
        """Continue or begin a file; another node with the same cache waits, and then finds it there."""
        blob = self._blob(file)
        blob.parent.mkdir(parents=True, exist_ok=True)
        self._locks.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(self._locks / f"{file.sha256}.lock"):
            if blob.exists():
                return
            part = blob.with_name(f"{file.sha256}.{self._job.node}.part")
            with part.open("ab") as target:
                if target.tell() > file.size:
                    target.truncate(0)
                url = huggingface_hub.hf_hub_url(self._job.source, file.name, revision=self._job.commit)
                headers = build_hf_headers(token=self._job.token) | {"Accept-Encoding": "identity"}
                try:
                    file_download.http_get(
                        url, target, resume_size=target.tell(), headers=headers, expected_size=file.size
                    )
                except errors.HfHubHTTPError as error:
                    raise CannotFetch(str(self._refused(error))) from error
            if _sha256(part) != file.sha256:
                part.unlink()
                raise CannotFetch(
                    f"{file.name} has another SHA-256 than {constants.ENDPOINT} says; it is removed and fetched again"
                )
            self._checked.add(file.name)
            part.replace(blob)

    def _drop_if_damaged(self, file: File) -> None:
        if (self._blob(file).exists() or self._pointer(file).exists()) and not self._is_whole(file):
            self._drop(file)

    def _is_whole(self, file: File) -> bool:
        """Return whether the file has its size and its SHA-256, which is computed once."""
        if file.name in self._checked:
            return True
        path = self._blob(file) if self._blob(file).exists() else self._pointer(file)
        if not path.is_file() or path.stat().st_size != file.size:
            return False
        if file.sha256 and _sha256(path) != file.sha256:
            return False
        self._checked.add(file.name)
        return True

    def _drop(self, file: File) -> None:
        """Remove the file, its links, and what they lead to."""
        self._checked.discard(file.name)
        for path in (self._pointer(file), self._blob(file)):
            target = path.resolve()
            path.unlink(missing_ok=True)
            target.unlink(missing_ok=True)

    def _present(self, file: File) -> int:
        pointer, blob = self._pointer(file), self._blob(file)
        if pointer.exists() or (file.sha256 and blob.exists()):
            return file.size
        if not file.sha256:
            return 0
        parts = blob.parent.glob(f"{file.sha256}.*")
        return min(file.size, max((_size(path) for path in parts), default=0))

    def _pointer(self, file: File) -> Path:
        return self._snapshot / file.name

    def _blob(self, file: File) -> Path:
        """Return where the library keeps the content of a large file; of a small one, its link."""
        return self._repository / "blobs" / file.sha256 if file.sha256 else self._pointer(file)


class _HubSilent(Exception):
    """The hub does not answer, or has an error of its own."""


def main() -> None:
    """Do the job on standard input. The exit status is 0 if everything is there."""
    given = job.parse(sys.stdin.buffer.readline())
    if given.token:
        # Engines run as the same account; the kernel then keeps them from this process's memory.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    fetch = Fetch(given)
    ended = threading.Event()
    reporter = threading.Thread(target=_report, args=(fetch, ended), daemon=True)
    reporter.start()
    try:
        last = fetch.run()
    except CannotFetch as error:
        last = fetch.report("failed", error=str(error))
    except Exception as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        why = "no space is left on the disk of the cache" if full else f"{type(error).__name__}: {error}"
        last = fetch.report("failed", error=why.split("\n", 1)[0])
    ended.set()
    reporter.join()  # this report is the last
    print(last.as_line(), flush=True)
    os._exit(0 if last.state == "done" else 1)  # downloads that still run would otherwise be waited for


def _file(listed: RepoSibling) -> File:
    if listed.lfs is not None:
        return File(name=listed.rfilename, size=listed.lfs.size, sha256=listed.lfs.sha256)
    return File(name=listed.rfilename, size=listed.size or 0, sha256="")


def _report(fetch: Fetch, ended: threading.Event) -> None:
    while not ended.wait(REPORT_SECONDS):
        if fetch.files:
            print(fetch.report().as_line(), flush=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


if __name__ == "__main__":
    main()
