"""Let a stream rest while its reader looks away, and go on when the reader is back.

Start a server, then ask it::

    python -m sglang.launch_server --model-path Qwen/Qwen3-8B --scheduler tokenflow
    python examples/looking_away.py --away 5 "Tell me a long story."

A page would do this when its tab is hidden, a player when its audio is paused. The stream stays
open: with rate 0 the server computes nothing for it until it is given a rate again. Needs the
package `openai`.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import urllib.error
import urllib.request

from openai import APIError, OpenAI

LOOKS = 10
"""Pieces of text after which the reader looks away."""


def set_rate(url: str, rid: str, rate: float, key: str) -> None:
    """Tell the server how fast stream `rid` is read from now on, in tokens per second."""
    request = urllib.request.Request(
        f"{url}/tokenflow/streams/{rid}",
        data=json.dumps({"rate": rate}).encode(),
        headers={"content-type": "application/json", "authorization": f"Bearer {key}"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=30):
            pass
    except urllib.error.HTTPError as error:
        # As it is: what SGLang says of a wrong key has another form than what we say of a rate.
        sys.exit(f"The server refuses the rate, HTTP {error.code}: {error.read().decode()}")


def main() -> None:
    """Print the answer as it arrives, and what came while the reader was away."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("prompt", nargs="?", default="Tell me a long story.")
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="of the server")
    parser.add_argument("--rate", type=float, default=10.0, help="tokens per second")
    parser.add_argument("--away", type=float, default=5.0, help="seconds without a reader")
    parser.add_argument("--max-tokens", type=int, default=400, help="length of the answer at most")
    parser.add_argument("--api-key", default="none", help="of the server, if it has one")
    parser.add_argument(
        "--admin-api-key", help="of the server, if it has one: rates take it instead of the other"
    )
    given = parser.parse_args()
    key = given.admin_api_key or given.api_key

    client = OpenAI(base_url=f"{given.url}/v1", api_key=given.api_key)
    try:
        stream = client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": given.prompt}],
            max_tokens=given.max_tokens,
            stream=True,
            extra_body={"custom_params": {"tokenflow_rate": given.rate}},
        )
    except APIError as error:  # for example a wrong key, or no server
        sys.exit(f"The request failed: {error.message}")
    came: list[float] = []  # when each piece of text did
    back: threading.Timer | None = None
    away, until = float("inf"), float("inf")
    for chunk in stream:
        text = chunk.choices[0].delta.content or ""
        print(text, end="", flush=True)
        came += [time.monotonic()] if text else []
        if len(came) == LOOKS and back is None:
            set_rate(given.url, chunk.id, 0, key)  # a chunk's id is the stream's
            away = time.monotonic()
            until = away + given.away
            args = (given.url, chunk.id, given.rate, key)
            back = threading.Timer(given.away, set_rate, args)
            back.start()
    if back is None:
        print(f"\n[{len(came)} pieces of text: too few to look away after {LOOKS}]")
        return
    meanwhile = sum(away < moment < until for moment in came)
    after = sum(moment >= until for moment in came)
    print(
        f"\n[{LOOKS} pieces of text, then away for {given.away:g} s: {meanwhile} pieces came "
        f"meanwhile, {after} after it]"
    )


if __name__ == "__main__":
    main()
