"""Nodes that come and go."""

import json
import urllib.request


def ask(url: str) -> int | str:
    """The status of the answer, or what went wrong."""
    body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 4}).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=100) as reply:
            reply.read()
            return int(reply.status)
    except OSError as error:
        return repr(error)
