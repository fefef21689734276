"""Asks gateways, each on its own thread, until it is killed; prints a line of JSON on what became of each request.

Imports nothing of Hearth: `python client.py KEY GATEWAY…`.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid

PAUSE_SECONDS = 0.05
TIMEOUT_SECONDS = 120


def ask(gateway: str, key: str) -> tuple[int, str, str]:
    """Ask something new; return status, request id and error. The status is 0 without an answer."""
    message = {"role": "user", "content": str(uuid.uuid4())}
    body = json.dumps({"model": "hearth-tiny", "max_tokens": 8, "messages": [message]}).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{gateway}/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            answer.read()
            return answer.status, answer.headers["x-request-id"], ""
    except urllib.error.HTTPError as error:
        return error.code, error.headers["x-request-id"] or "", error.read().decode()
    except (OSError, http.client.HTTPException) as error:
        return 0, "", repr(error)


def main(key: str, *gateways: str) -> None:
    """Start a thread for each gateway."""

    def go_on(gateway: str) -> None:
        while True:
            began = time.monotonic()
            status, request_id, error = ask(gateway, key)
            print(json.dumps([gateway, status, request_id, time.monotonic() - began, error]), flush=True)
            time.sleep(PAUSE_SECONDS)

    for gateway in gateways:
        threading.Thread(target=go_on, args=[gateway]).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
