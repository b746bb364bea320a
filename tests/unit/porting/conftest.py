"""Two made-up releases of SGLang, of the files that a test gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from porting.changes import Comparison, compare
from porting.release import Release
from tokenflow_sgl.engine.sglang.seam import Seam

Files = Mapping[str, str]
Compared = Callable[..., Comparison]


def write(root: Path, files: Files) -> Path:
    """The folder of a package `sglang` with these modules below srt/, by their names."""
    for name, text in files.items():
        path = root / "srt" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    """Compares two releases; a text alone stands for the one module `one`."""

    def make(base: Files | str, new: Files | str, *seams: Seam) -> Comparison:
        sides = [{"one": each} if isinstance(each, str) else each for each in (base, new)]
        releases = [
            Release(version, write(tmp_path / version, files))
            for version, files in zip(("old", "young"), sides, strict=True)
        ]
        return compare(releases[0], releases[1], seams)

    return make
