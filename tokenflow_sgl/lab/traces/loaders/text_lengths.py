"""How long texts are in tokens, for files that have texts and no numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tokenflow_sgl.lab.traces.request import TraceError

MOST_CHARS = 1000.0
"""Largest number of characters per token that makes sense."""
NEEDED = (
    "tokenizer or chars_per_token must be given, as in tokenizer=MODEL/tokenizer.json or "
    "chars_per_token=4"
)


class TextMeasure(Protocol):
    """Counts the tokens of a text."""

    def tokens(self, text: str) -> int:
        """Tokens of a text; 0 for an empty one alone."""
        ...

    def said(self) -> str:
        """How it counts, for notes."""
        ...


@dataclass(frozen=True, slots=True)
class CharsPerToken:
    """Takes so many characters for a token, rounded up.

    Raises:
        TraceError: It is not above 0 and at most `MOST_CHARS`.
    """

    chars: float

    def __post_init__(self) -> None:
        if not 0 < self.chars <= MOST_CHARS:
            raise TraceError(
                f"chars_per_token is {self.chars:g}; allowed is a number above 0 and at most "
                f"{MOST_CHARS:g}, as in chars_per_token=4"
            )

    def tokens(self, text: str) -> int:
        """Tokens of a text; 0 for an empty one alone."""
        return int(-(-len(text) // self.chars))

    def said(self) -> str:
        """How it counts, for notes."""
        return f"{self.chars:g} characters a token"


@dataclass(slots=True)
class TokenizerFile:
    """Counts with the tokenizer of a model: its tokenizer.json, or a folder that has one."""

    path: Path
    _core: Any = field(default=None, init=False)

    def tokens(self, text: str) -> int:
        """Tokens of a text; 0 for an empty one alone.

        Raises:
            TraceError: There is no such tokenizer, or the package for it is not installed.
        """
        if self._core is None:
            self._core = _tokenizer(self.path)
        # A half of a surrogate pair, which JSON can spell, is no text to it.
        text = text.encode("utf-8", "replace").decode()
        return len(self._core.encode(text, add_special_tokens=False).ids)

    def said(self) -> str:
        """How it counts, for notes."""
        return f"the tokenizer {self.path}"


def pieces(value: Any) -> Iterator[str | int]:
    """Texts of messages as APIs have them, and 1 for each token of a prompt that is of numbers."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from pieces(each)
    elif isinstance(value, dict):
        for name in ("content", "text", "parts"):
            yield from pieces(value.get(name))
    elif type(value) is int:
        yield 1


def tokens_of(measure: TextMeasure, value: Any) -> int:
    """Tokens of all texts of messages, or of a prompt."""
    return sum(
        piece if isinstance(piece, int) else measure.tokens(piece) for piece in pieces(value)
    )


def _tokenizer(path: Path) -> Any:
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise TraceError(
            "tokenizer needs the package tokenizers, which SGLang's environment has; install it, "
            "or give chars_per_token, as in chars_per_token=4"
        ) from None
    problem = "there is no such file"
    if file.is_file():
        problem = "is no tokenizer.json that the package tokenizers reads"
        try:
            return Tokenizer.from_file(str(file))
        except Exception:  # it raises nothing more special, with words of the file
            pass
    raise TraceError(
        f"{file}: {problem}; allowed is a model's tokenizer.json, or a folder that has one (hf "
        "download MODEL tokenizer.json fetches it)"
    ) from None
