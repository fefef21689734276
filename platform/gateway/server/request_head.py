"""The head of a client's request: its limits, its checks, and the ASGI scope made from it."""

from __future__ import annotations

from urllib.parse import unquote

from httptools import HttpParserError, parse_url

from gateway.server.rejection import Rejection
from gateway.server.request_response import CLOSE, Headers, Message, head

#: Limits in bytes: a request's target; its head, or other consecutive bytes that are not body.
MAX_TARGET_BYTES = 16 * 1024
MAX_FRAMING_BYTES = 64 * 1024
MAX_HEADERS = 100
#: The path of one model, whose name may contain a slash.
MODEL = "/v1/models/"


def find_error(version: str, target: bytes, headers: Headers, framing_bytes: int) -> Rejection | None:
    """Return the error in a head, if any. ``framing_bytes``: its size, perhaps with the start of the body."""
    if version not in {"1.0", "1.1"}:
        return Rejection(400, "bad_http", f"HTTP/{version} is not supported; use HTTP/1.1.")
    if len(target) > MAX_TARGET_BYTES:
        return too_large(target)
    # Headers are only summed if they can be too long.
    long = framing_bytes > MAX_FRAMING_BYTES
    if long and sum(len(name) + len(value) for name, value in headers) > MAX_FRAMING_BYTES:
        return too_large(target)
    if len(headers) > MAX_HEADERS:
        return too_large(target)
    hosts = [name for name, _ in headers].count(b"host")
    if hosts > 1 or (hosts == 0 and version == "1.1"):  # RFC 9112, 3.2
        return Rejection(400, "bad_http", f"The request has {hosts} 'Host' headers; exactly one is needed.")
    return None


def too_large(target: bytes) -> Rejection:
    """Return the error for a head that is larger than allowed."""
    if len(target) > MAX_TARGET_BYTES:
        return Rejection(
            414,
            "target_too_long",
            f"The request target is longer than the {MAX_TARGET_BYTES} bytes allowed. Shorten the URL.",
        )
    return Rejection(
        431,
        "head_too_large",
        f"The head is larger than the {MAX_FRAMING_BYTES} bytes allowed, or has more than {MAX_HEADERS} headers.",
    )


def scope(version: str, method: bytes, target: bytes, headers: Headers, peer: tuple[str, int] | None) -> Message:
    """Return the ASGI scope of a request."""
    path, query = split_target(target)
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": version,
        "method": method.decode("ascii"),
        "scheme": "http",
        "path": path,
        "raw_path": target.partition(b"?")[0],
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": peer,
        "server": None,
    }


def rejection_response(status: int, date: bytes, headers: Headers, body: bytes) -> bytes:
    """Return a whole response that closes the connection. ``date``: the header line with the time."""
    length = (b"content-length", b"%d" % len(body))
    return head(status, date, [(b"content-type", b"application/json"), length, CLOSE, *headers]) + b"\r\n\r\n" + body


def split_target(target: bytes) -> tuple[str, bytes]:
    """Return the path and the query of a target, which may be a whole URL (RFC 9112, 3.2.2).

    Only the path of a model is decoded, because clients encode the slash in its name. Any other path has one spelling,
    so that the rules of a proxy in front, which may not decode, see the path that is served.
    """
    if target[:1] == b"/":
        path, _, query = target.partition(b"?")
    else:
        try:
            url = parse_url(target)
        except HttpParserError:  # an asterisk, or an authority
            path, query = target, b""
        else:
            path, query = url.path or b"/", url.query or b""
    text = path.decode("latin-1")
    return unquote(text) if text.startswith(MODEL) else text, query


def framing(headers: Headers) -> bytes:
    """Return a head with only the headers that frame the body."""
    lines = [b"%b: %b\r\n" % each for each in headers if each[0] in {b"content-length", b"transfer-encoding"}]
    return b"".join([b"POST * HTTP/1.1\r\n", *lines, b"\r\n"])
