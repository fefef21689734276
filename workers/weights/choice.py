"""Which files of a repository a node fetches: those that an engine loads, in one format of weights."""

from __future__ import annotations

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
#: In a repository with this file the engine loads weights from folders too, such as ``2_Dense``.
MODULES = "modules.json"
#: Values of --load-format that take any format, the consolidated one first.
_ANY = frozenset({"", "auto"})
_ONE_FORMAT = {"pt": ".pt", "npcache": ".bin", "gguf": ".gguf"}


def chosen(names: Iterable[str], load_format: str) -> list[str]:
    """Return the files to fetch, sorted: the weights of one format, and everything that is no weights.

    Pickles are among them only if there are no safetensors or the format asks for them, which `hearth deploy` has to be
    allowed.
    """
    found = sorted(names)
    weights = set(_weights([name for name in found if "/" not in name], load_format))
    if MODULES in found:
        weights |= {name for name in found if "/" in name and name.endswith(SAFETENSORS)}
    return [name for name in found if name in weights or not name.endswith((*FORMATS, *OTHERS))]


def _weights(names: Collection[str], load_format: str) -> list[str]:
    if load_format in _ONE_FORMAT:
        return [name for name in names if name.endswith(_ONE_FORMAT[load_format])]
    for ending in FORMATS:
        if found := [name for name in names if name.endswith(ending)]:
            consolidated = [name for name in found if name.startswith(CONSOLIDATED)]
            if load_format == "mistral" or (load_format in _ANY and ending == SAFETENSORS):
                return consolidated or found
            return found
    return []
