"""Puts the pages of the docs site, and the files that they link to, below one folder.

    python website/stage.py .site/pages

The pages lie where readers of the repository find them, some beside what they measure, so that
links between them hold in both places. What git ignores is not copied.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "*.md",
    "docs/**/*.md",
    "benchmarks/**/README.md",
    "examples/*.md",
    "emulator/*.md",
    "traces/*.md",
)
STYLE = ("website/*.css", "website/*.js")
"""Not pages; mkdocs.yml names them."""
LINK = re.compile(r"\]\(([^)#\s]+)")
"""Target of a link or of a picture, without its anchor."""


def main(into: Path) -> None:
    """Stage the site; `into` is made anew."""
    shutil.rmtree(into, ignore_errors=True)
    files = tracked()
    pages = sorted(path for pattern in PAGES for path in ROOT.glob(pattern))
    wanted = {path for path in pages if path in files}
    for page in tuple(wanted):
        wanted |= linked(page) & files
    wanted.update(path for pattern in STYLE for path in ROOT.glob(pattern) if path in files)
    for path in sorted(wanted):
        target = into / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def tracked() -> set[Path]:
    """All files that git knows or that are new and not ignored."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split("\0")
    return {ROOT / name for name in names if name}


def linked(page: Path) -> set[Path]:
    """Files that a page links to or shows."""
    targets = LINK.findall(page.read_text())
    return {(page.parent / each).resolve() for each in targets if "://" not in each}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
