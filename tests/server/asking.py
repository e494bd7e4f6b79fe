"""Asks a server from where the test itself cannot reach it: ``python -m tests.server.asking URL``.

A line of standard input is a list of ``[path, body]``, asked at the same time, ``body`` null for GET; the answer is a
line with a list of ``[status, text]``, status 0 where there was no answer.
"""

import json
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SECONDS = 60.0


def ask(question: tuple[str, Any]) -> tuple[int, str]:
    path, body = question
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(sys.argv[1] + path, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def main() -> None:
    with ThreadPoolExecutor(16) as threads:
        for line in sys.stdin:
            print(json.dumps(list(threads.map(ask, json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
