"""The docs site builds with its warnings fatal: links, anchors, pages that no menu has."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("site") / "pages"
    runpy.run_path(str(ROOT / "website/stage.py"))["main"](into)
    return into


def built(pages: Path, into: Path) -> None:
    build(
        load_config(
            str(ROOT / "mkdocs.yml"),
            docs_dir=str(pages),
            site_dir=str(into),
            strict=True,
            plugins=[],  # the search index takes as long as all else
        )
    )


@pytest.mark.filterwarnings("ignore")
def test_it_builds_and_loads_nothing_from_other_hosts(pages: Path, tmp_path: Path) -> None:
    built(pages, tmp_path)
    page = (tmp_path / "docs" / "start" / "index.html").read_text()
    assert "tokenflow doctor" in page
    assert "https://fonts." not in page
    for name in ("website/tables.js", "website/tables.css"):  # fields that filter long tables
        assert f"../../{name}" in page
        assert (tmp_path / name).exists()


@pytest.mark.filterwarnings("ignore")
def test_control_an_anchor_that_leads_nowhere_ends_it(pages: Path, tmp_path: Path) -> None:
    page = pages / "README.md"
    page.write_text(f"{page.read_text()}\n[gone](docs/start.md#gone)\n")
    with pytest.raises(Abort):
        built(pages, tmp_path)
