"""What this node's cache of the hub has of a commit, without a question to the hub."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
from huggingface_hub import errors

from workers.weights import choice
from workers.weights.job import Job

#: Weights are in several files with such an index, which names all of them.
INDEX = ".index.json"
#: An engine starts with one of these.
CONFIGURATIONS = frozenset({"config.json", "params.json"})
_SHA256 = re.compile(r"([0-9a-f]{64})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file of the commit. ``sha256`` is empty for a small one, of which the hub says no SHA-256."""

    name: str
    size: int
    sha256: str

    @property
    def is_safe(self) -> bool:
        """Return whether its paths are within the cache."""
        return _is_within(self.name) and bool(_SHA256.fullmatch(self.sha256))


def files(job: Job, snapshot: Path) -> tuple[File, ...]:
    """Return the files that the job asks for; none if one of them is missing.

    Which files those are is in the listing of the commit, which the library stores with a fetch. A cache without a
    listing is taken for complete if it has a configuration and all weights that its indexes name.
    """
    try:
        tree = huggingface_hub.get_cached_repo_tree(job.source, revision=job.commit)
    except errors.CachedRepoTreeNotFoundError:
        there = {path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()}
        sizes = dict.fromkeys(there | set(_in_indexes(there, snapshot)))
    else:
        sizes = {file.path: file.size for file in tree}
    wanted = choice.chosen(sizes, job.load_format)
    if not CONFIGURATIONS & {*wanted} or not any(name.endswith(choice.FORMATS) for name in wanted):
        return ()
    if not all(_is_within(name) and (snapshot / name).is_file() for name in wanted):
        return ()
    return tuple(_file(snapshot, name, sizes[name]) for name in wanted)


def _file(snapshot: Path, name: str, size: int | None) -> File:
    content = (snapshot / name).resolve()
    sha256 = content.name if _SHA256.fullmatch(content.name) else ""  # the name of a large file's content is its hash
    return File(name=name, size=content.stat().st_size if size is None else size, sha256=sha256)


def _in_indexes(names: Iterable[str], snapshot: Path) -> Iterator[str]:
    for name in names:
        if name.endswith(INDEX):
            with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):  # not the form of an index
                weights = json.loads((snapshot / name).read_bytes())["weight_map"].values()
                yield from (str(Path(name).parent / each) for each in weights)


def _is_within(name: str) -> bool:
    return not {"", ".", ".."} & {*name.split("/")} and "\0" not in name
