"""A listener instead of a reader: an answer is spoken while it is generated.

Start a server, then listen::

    python -m sglang.launch_server --model-path Qwen/Qwen3-8B --scheduler tokenflow
    python examples/voice.py "Tell me a story."

There is no sound. A voice that speaks 150 words per minute is simulated: it takes each word when
the word is complete, and would fall silent when it has spoken all words that have arrived. The
program prints where that happens. It does not wait for the voice: it ends when the answer is
complete. The request has the class `listening`, 5 tokens per second: speech with a reserve.
Needs the package `openai`.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterable, Iterator

from openai import APIError, OpenAI

AUDIBLE_SECONDS = 0.1
"""A shorter silence passes for a pause between two words."""


class Voice:
    """Speaks words at an even speed.

    Args:
        words_per_minute: The speed.

    Attributes:
        words: How many words it has taken.
    """

    def __init__(self, words_per_minute: float) -> None:
        self._seconds_per_word = 60.0 / words_per_minute
        self._done_at: float | None = None
        self.words = 0

    def take(self, now: float) -> float:
        """Take one more word at time `now`, in seconds.

        Returns:
            For how many seconds the voice had been silent since its last word.
        """
        done_at = now if self._done_at is None else self._done_at
        self._done_at = max(now, done_at) + self._seconds_per_word
        self.words += 1
        return max(0.0, now - done_at)


def complete_words(pieces: Iterable[str]) -> Iterator[str]:
    """The words of a text that arrives in pieces, each as soon as the space behind it is there."""
    rest = ""
    for piece in pieces:
        *words, rest = re.split(r"\s+", rest + piece)
        yield from filter(None, words)
    if rest:
        yield rest


def main() -> None:
    """Print the words, the silences between them, and how long they lasted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("prompt", nargs="?", default="Tell me a story.")
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="of the server")
    parser.add_argument("--words-per-minute", type=float, default=150.0, help="speed of the voice")
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
            extra_body={"custom_params": {"tokenflow_class": "listening"}},
        )
    except APIError as error:  # for example a wrong key, or no server
        sys.exit(f"The request failed: {error.message}")
    voice = Voice(given.words_per_minute)
    silences: list[float] = []
    for word in complete_words(chunk.choices[0].delta.content or "" for chunk in stream):
        silence = voice.take(time.monotonic() - asked)
        if silence > AUDIBLE_SECONDS:
            silences.append(silence)
            print(f"\n[silent for {silence:.2f} s after {voice.words - 1} words]")
        print(word, end=" ", flush=True)
    print(f"\n[{voice.words} words, silent {len(silences)} times, {sum(silences):.2f} s in all]")


if __name__ == "__main__":
    main()
