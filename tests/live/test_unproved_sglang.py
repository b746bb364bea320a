"""On an SGLang that was not proved the start is refused, unless it is told to go on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from servers.fixtures import COLD, SERVER_SIDE

from tokenflow_sgl.lab.demo.server import ServerError

pytestmark = pytest.mark.engine

UNPROVED = "--tokenflow-unproved-sglang"


@pytest.fixture
def fake(tmp_path: Path) -> dict[str, str]:
    """The environment in which the installed SGLang says that it is 0.5.99."""
    info = tmp_path / "sglang-0.5.99.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.99\n")
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(SERVER_SIDE)])}


def test_it_is_refused_in_a_sentence(start: Any, fake: dict[str, str]) -> None:
    sentence = r"tokenflow cannot start on SGLang 0\.5\.99, .*pip install sglang==0\.5\."
    with (
        pytest.raises(ServerError, match=sentence),
        start("--scheduler", "tokenflow", launcher=COLD, env=fake),
    ):
        pass


def test_it_starts_where_it_is_told_to_and_says_so(
    start: Any, fake: dict[str, str], prompts: Any, reference: Any
) -> None:
    """Two ranks: both processes of schedulers are told, too."""
    flags = ("--scheduler", "tokenflow", UNPROVED, "--tp-size", "2")
    with start(*flags, launcher=COLD, env=fake) as served:
        assert served.outputs(prompts, stream=True) == reference
        assert len(served.metrics()) > 100  # of ours, too
        said = served.server.log_path.read_text()
    assert "tokenflow was not proved on SGLang 0.5.99: answers may be wrong" in said
