"""Ask a server with the OpenAI client, and tell it how fast the reader reads.

Start a server, then ask it::

    python -m sglang.launch_server --model-path Qwen/Qwen3-8B --scheduler tokenflow
    python examples/openai_client.py --rate 20 "Tell me a story."

The rate is in tokens per second. It does not slow the stream down: the text arrives as soon as the
server sends it. The scheduler uses it to work out for how long the reader still has text to read.
A server without `--scheduler tokenflow` ignores it. Needs the package `openai`.
"""

from __future__ import annotations

import argparse
import sys
import time

from openai import APIError, OpenAI


def main() -> None:
    """Print the answer as it arrives, then the time to the first text."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("prompt", nargs="?", default="Tell me a story.")
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="of the server")
    parser.add_argument("--rate", type=float, default=20.0, help="tokens per second")
    parser.add_argument("--max-tokens", type=int, default=200, help="length of the answer at most")
    parser.add_argument("--api-key", default="none", help="of the server, if it has one")
    given = parser.parse_args()

    client = OpenAI(base_url=f"{given.url}/v1", api_key=given.api_key)
    asked = time.monotonic()
    try:
        stream = client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": given.prompt}],
            max_tokens=given.max_tokens,
            stream=True,
            extra_body={"custom_params": {"tokenflow_rate": given.rate}},
        )
    except APIError as error:  # for example a rate above 1000, or no server
        sys.exit(f"The request failed: {error.message}")
    first: float | None = None
    for chunk in stream:
        text = chunk.choices[0].delta.content or ""
        if text and first is None:
            first = time.monotonic() - asked
        print(text, end="", flush=True)
    seconds = time.monotonic() - asked
    begun = "no text" if first is None else f"first text after {first:.2f} s"
    print(f"\n[{begun}, answer complete after {seconds:.2f} s]")


if __name__ == "__main__":
    main()
