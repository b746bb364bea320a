"""Ask a server with the OpenAI client, and tell it how fast the reader reads.

Start a server, then ask it::

    python -m sglang.launch_server --model-path Qwen/Qwen3-8B --scheduler tokenflow
    python examples/openai_client.py --rate 20 "Tell me a story."

The rate is in tokens per second. It does not slow the stream down: the text arrives as soon as the
server sends it. The scheduler uses it to work out for how long the reader still has text to read.
A server without `--scheduler tokenflow` ignores it. Needs the package `openai`.

Of a model that thinks nothing is printed but that it does, if the server has SGLang's
`--reasoning-parser` (`qwen3` for this model); the reader begins with the first text after it.
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
    thinks, first = False, None
    for chunk in stream:
        delta = chunk.choices[0].delta
        # A field of reasoning servers, which the OpenAI client passes on as it comes.
        if getattr(delta, "reasoning_content", None) and not thinks:
            thinks = True
            print("[thinking]", flush=True)
        if delta.content and first is None:
            first = time.monotonic() - asked
        print(delta.content or "", end="", flush=True)
    seconds = time.monotonic() - asked
    if first is not None:
        begun = f"first text after {first:.2f} s"
    elif thinks:
        begun = f"no text within {given.max_tokens} tokens: --max-tokens allows more"
    else:
        begun = "no text"
    print(f"\n[{begun}, answer complete after {seconds:.2f} s]")


if __name__ == "__main__":
    main()
