"""The docs use the field's words: no other word for the same thing, no "who" for a stream."""

from __future__ import annotations

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
    "docs/dashboards.md",  # explains old words on its pictures
}
"""Pages that need an old word for a name or a picture; one that no longer does leaves this set."""
PATTERNS = (
    "README.md",
    "docs/*.md",
    "emulator/*.md",
    "examples/*.*",
    "benchmarks/**/*.md",
    "traces/*.md",
)
PAGES = sorted(
    {str(path.relative_to(ROOT)) for pattern in PATTERNS for path in ROOT.glob(pattern)} - NOT_YET
)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_uses_the_words_of_the_field(page: str) -> None:
    text = (ROOT / page).read_text()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found = {
        word: instead
        for word, instead in INSTEAD.items()
        if re.search(rf"\b{word}\b", prose, re.IGNORECASE)
    }
    assert not found
