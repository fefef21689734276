"""Turn DATABASE_URL and REDIS_URL into what Django, redis-py, Channels and Celery each expect."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from hearth import env
from hearth.embedded.postgres import PostgresServer
from hearth.embedded.redis import SOCKET_NAME
from hearth.secrets import DatabasePasswords

#: How long libpq believes in a server that says nothing (by itself, for hours): a gateway that waits on a dead
#: connection hears of no revoked key. Seconds, but for tcp_user_timeout, milliseconds; a URL may say otherwise.
DATABASE_PATIENCE = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}


def django_database(url: str) -> dict[str, Any]:
    """Return Django's database entry for a ``postgresql://`` URL; a socket folder goes in ``?host=``.

    An empty URL gives an entry that cannot connect, so that commands which need no database still run.
    Raises BadSetting for any other scheme.
    """
    if not url:
        return {"ENGINE": "django.db.backends.postgresql", "NAME": "hearth", "HOST": "/nonexistent"}
    parts = urlsplit(url)
    if parts.scheme not in {"postgresql", "postgres"}:
        raise env.BadSetting("DATABASE_URL", f"{parts.scheme}://…", "a postgresql:// URL")
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    host = query.pop("host", None) or parts.hostname or ""
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")) or "hearth",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": str(parts.port or ""),
        "OPTIONS": {**DATABASE_PATIENCE, **query},
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
    }


def database_url(passwords: DatabasePasswords) -> str:
    """Return DATABASE_URL, else where `hearth up` has this data directory's PostgreSQL, for role hearth_app."""
    given = env.text("DATABASE_URL")
    if given:
        return given
    data_dir = env.data_dir()
    server = PostgresServer(
        data_dir=data_dir / "postgres",
        sockets_dir=env.sockets_dir(data_dir),
        log_path=data_dir / "logs" / "postgres.log",
        passwords=passwords,
    )
    return server.urls.app


def redis_url(name: str) -> str:
    """Return the URL of one Redis role: its own, else REDIS_URL, else the embedded server of this data directory."""
    return env.text(name) or env.text("REDIS_URL") or _embedded_redis()


def _embedded_redis() -> str:
    """Return where `hearth up` has this data directory's Redis, so that a plain `celery -A hearth …` finds it."""
    return f"unix://{env.sockets_dir(env.data_dir()) / SOCKET_NAME}?db=0"


def celery_url(name: str) -> str:
    """Return the same address in kombu's spelling, which names a unix socket ``redis+socket://``."""
    url = redis_url(name)
    if not url.startswith("unix://"):
        return url
    parts = urlsplit(url)
    database = parse_qs(parts.query).get("db", ["0"])[-1]
    return f"redis+socket://{parts.path}?virtual_host={database}"
