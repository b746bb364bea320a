"""The docs use the field's words: no other word for the same thing, no "who" for a stream."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
INSTEAD = {
    "taken up": "resumed",
    "written ahead": "write-through, copied to the host",
    "loaded ahead": "prefetched",
    "hidden loads?": "prefetch",
    "offering": "candidates",
    "whom": "which",
    "nobody": "no stream, no reader",
    "everybody": "all streams, all readers",
}
"""What to write in place of each."""
NOT_YET = {
    "benchmarks/context_switch/README.md",  # names of contenders in recorded results
}
"""Pages that need an old word for a name or a picture; one that no longer does leaves this set."""
PATTERNS = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/*.md",
    "emulator/*.md",
    "examples/*.*",
    "benchmarks/**/*.md",
    "traces/*.md",
)
PAGES = sorted(
    {str(path.relative_to(ROOT)) for pattern in PATTERNS for path in ROOT.glob(pattern)} - NOT_YET
)


def old_words(text: str) -> dict[str, str]:
    """Old words in a text, and what stands in place of each."""
    return {
        word: instead
        for word, instead in INSTEAD.items()
        if re.search(rf"\b{word}\b", text, re.IGNORECASE)
    }


@pytest.mark.parametrize("page", PAGES)
def test_a_page_uses_the_words_of_the_field(page: str) -> None:
    text = (ROOT / page).read_text()
    assert not old_words(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def test_so_does_the_code() -> None:
    files = sorted((ROOT / "tokenflow_sgl").rglob("*.py"))
    found = {str(path.relative_to(ROOT)): old_words(path.read_text()) for path in files}
    assert {path: words for path, words in found.items() if words} == {}


EMPTY_FIRST_LINES = (
    r"The same\b",
    r"(Of|As of|As) [^.;,]{1,25}[.;]?$",
    r"(Those|These|Them)\b",
    r"(So many|So much)\b",
)
"""First lines of docstrings that say something only next to what stands around them."""


def test_a_docstring_says_something_by_itself() -> None:
    """Its first line is all that an editor or a search shows."""
    found = []
    for path in sorted((ROOT / "tokenflow_sgl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                if any(re.match(pattern, first) for pattern in EMPTY_FIRST_LINES):
                    found.append(f"{path.name}:{node.lineno} {node.name}: {first}")
    assert found == []
