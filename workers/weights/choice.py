"""Which files of a repository a node fetches: those that an engine loads, in one format of weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

SAFETENSORS = ".safetensors"
#: Weights in the order in which the engine looks for them.
FORMATS = (SAFETENSORS, ".bin", ".pt", ".pth", ".gguf")
#: What the names of weights in Mistral's own format begin with. The engine loads them instead of others beside them.
CONSOLIDATED = "consolidated"
#: Formats of other programs, and files that no engine reads.
OTHERS = (
    *(".ckpt", ".h5", ".msgpack", ".onnx", ".onnx_data", ".ot", ".tflite", ".mlmodel", ".mlpackage", ".nemo", ".tar"),
    *(".gz", ".zip", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".mp3", ".mp4", ".wav", ".pdf", ".ipynb"),
)
#: Python pickles, which can run code when they are loaded.
PICKLES = (".bin", ".pt", ".pth")
#: What training leaves beside weights. The engine leaves it out by these names, and some of it is as large.
_OF_TRAINING = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
#: Weights of a further layer, which the engine's BgeM3EmbeddingModel reads beside those of any format.
_FURTHER = frozenset({"sparse_linear.pt", "colbert_linear.pt"})
#: Folders with the same weights for other programs.
_OTHER_FOLDERS = frozenset({"coreml", "metal", "onnx", "openvino", "original"})
#: In a repository with this file the engine also loads pickles from folders, such as ``2_Dense``.
MODULES = "modules.json"
#: Values of --load-format that take any format, the consolidated one first.
_ANY = frozenset({"", "auto"})
_ONE_FORMAT = {"pt": (".pt",), "npcache": (".bin", ".pt"), "gguf": (".gguf",)}


def chosen(names: Iterable[str], load_format: str) -> list[str]:
    """Return the files to fetch, sorted: the weights that an engine loads, and everything that is no weights.

    Of the top folder one format, and in each other folder safetensors: models have adapters and encoders there.
    """
    found = sorted(names)
    folders: dict[str, list[str]] = defaultdict(list)
    for name in found:
        if not name.endswith(_OF_TRAINING):
            folders[name.rpartition("/")[0]].append(name)
    weights = set(_weights(folders.pop("", []), load_format))
    for folder, inside in folders.items():
        if folder.split("/")[0] not in _OTHER_FOLDERS:
            weights |= set(_weights_of_folder(inside, pickles=MODULES in found))
    return [name for name in found if name in weights or not name.endswith((*FORMATS, *OTHERS))]


def has_pickles(names: Iterable[str], load_format: str) -> bool:
    """Return whether pickles are among the files to fetch."""
    return any(name.endswith(PICKLES) for name in chosen(names, load_format))


def _weights(names: Collection[str], load_format: str) -> list[str]:
    if load_format in _ONE_FORMAT:
        return [name for name in names if name.endswith(_ONE_FORMAT[load_format])]
    for ending in FORMATS:
        if found := [name for name in names if name.endswith(ending)]:
            consolidated = [name for name in found if name.startswith(CONSOLIDATED)]
            if load_format == "mistral" or (load_format in _ANY and ending == SAFETENSORS):
                found = consolidated or found
            # The engine takes .pt for want of .bin, and some models have a further layer in it.
            further = [name for name in names if name in _FURTHER or (ending == ".bin" and name.endswith(".pt"))]
            return [*found, *further]
    return []


def _weights_of_folder(names: Collection[str], *, pickles: bool) -> list[str]:
    safe = [name for name in names if name.endswith(SAFETENSORS)]
    return safe or [name for name in names if pickles and name.endswith(PICKLES)]
