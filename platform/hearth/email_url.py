"""The address of a server for e-mails, as HEARTH_EMAIL_URL writes it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

_BACKENDS = "django.core.mail.backends."
#: Port by scheme, unless the address names one.
_PORTS = {"smtp": 587, "smtps": 465, "smtp+plain": 25}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmailServer:
    """What Django's settings of e-mail need."""

    backend: str
    host: str = ""
    port: int = 0
    user: str = ""
    password: str = ""
    use_starttls: bool = False
    use_tls: bool = False
    folder: str | None = None


def parse(url: str) -> EmailServer:
    """Return the server of an address; one that takes nothing for an empty address. Raises ValueError."""
    if not url:
        return EmailServer(backend=f"{_BACKENDS}dummy.EmailBackend")
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.path.startswith("/") and not parts.netloc:
        return EmailServer(backend=f"{_BACKENDS}filebased.EmailBackend", folder=unquote(parts.path))
    if parts.scheme not in _PORTS or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError("smtp://user:password@host:587, smtps://…, smtp+plain://… or file:///folder")
    return EmailServer(
        backend=f"{_BACKENDS}smtp.EmailBackend",
        host=parts.hostname,
        port=parts.port or _PORTS[parts.scheme],
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        use_starttls=parts.scheme == "smtp",
        use_tls=parts.scheme == "smtps",
    )
