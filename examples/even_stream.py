"""Print an answer just as it arrives, and measure how even it is: the server delivers it evenly.

Start a server, then ask it::

    python -m sglang.launch_server --model-path Qwen/Qwen3-8B --scheduler tokenflow
    python examples/even_stream.py --tbt 0.1 "Tell me a story."
    python examples/even_stream.py --tbt 0.1 --without "Tell me a story."

This client has no buffer and no timer of its own. The server keeps what it generates early in a
token deposit, delivers one token per interval, and the rest when the answer is complete. With
`--without` it asks for no deposit, and the text comes as it is generated. Needs `openai`.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time

from openai import APIError, OpenAI


def main() -> None:
    """Print the answer as it arrives, then the times between two pieces of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("prompt", nargs="?", default="Tell me a story.")
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="of the server")
    parser.add_argument("--tbt", type=float, default=0.1, help="seconds between two tokens")
    parser.add_argument("--max-tokens", type=int, default=200, help="length of the answer at most")
    parser.add_argument("--without", action="store_true", help="ask for no deposit")
    parser.add_argument("--api-key", default="none", help="of the server, if it has one")
    given = parser.parse_args()

    client = OpenAI(base_url=f"{given.url}/v1", api_key=given.api_key)
    asked = {"tokenflow_tbt_slo": given.tbt, "tokenflow_deposit": not given.without}
    try:
        stream = client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": given.prompt}],
            max_tokens=given.max_tokens,
            stream=True,
            temperature=0,  # the same answer with and without
            extra_body={"custom_params": asked},
        )
    except APIError as error:  # for example a TBT objective of 0, or no server
        sys.exit(f"The request failed: {error.message}")
    came: list[float] = []  # when each piece of text did
    for chunk in stream:
        text = chunk.choices[0].delta.content or ""
        print(text, end="", flush=True)
        came += [time.monotonic()] if text else []
    gaps = [after - before for before, after in itertools.pairwise(came)]
    if len(gaps) < 3:
        print(f"\n[{len(came)} pieces of text: too few to say how even they are]")
        return
    print(
        f"\n[{len(came)} pieces of text; between two of them {statistics.median(gaps):.3f} s "
        f"(median), {min(gaps[:-1]):.3f} s at least and {max(gaps):.3f} s at most; the last one is "
        "what was left]"
    )


if __name__ == "__main__":
    main()
