"""A LoRA adapter that was loaded: it changes answers, and has blocks of its own in the KV cache."""

from dataclasses import dataclass

#: Ends the name that Hearth loads an adapter by; answers leave it out, as with ``workers/engines/in_engine``.
REVISION_MARK = "@"


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter by its name and its folder."""

    name: str
    path: str

    @property
    def public_name(self) -> str:
        """Return what answers call it."""
        return self.name.partition(REVISION_MARK)[0]

    @property
    def block_key(self) -> tuple[str, str, str]:
        """Return what the hash of each of its blocks contains."""
        return ("lora", self.name, self.path)
