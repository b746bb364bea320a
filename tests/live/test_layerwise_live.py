"""Whatever layers lie on the host, every probability is the one that resident KV gives.

All tests compare the 512 log probabilities of every token: the whole vocabulary of the tiny models.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from servers.layered import NEW, PLAIN, PLANS, Said, ask, layered

from tokenflow_sgl_emulator.models import make_tiny_model

pytestmark = pytest.mark.engine

TURNS = 6
"""On a busy machine some prompts may come when others are answered: so many turns, at most."""
RATIO = ("--tokenflow-layerwise-ratio", "4")
ON = (*PLAIN, *RATIO, "--max-total-tokens", "1280")
"""1,280 tokens of four layers: the device holds what 320 take, the twelve prompts come to 900."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("layered")
    return {arch: make_tiny_model(root / arch, arch) for arch in ("llama", "qwen3")}


@pytest.fixture(scope="module")
def resident(start, model, prompts) -> dict[str, Said]:
    """What SGLang says with its own pool."""
    said = {}
    for arch, path in model.items():
        with start(*PLAIN, "--max-total-tokens", "4000", model=path) as served:
            said[arch] = ask(served, prompts)
    return said


def steps(notes: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (notes / "notes").read_text().splitlines()]


@pytest.mark.parametrize(
    ("arch", "page", "plan", "flags"),
    [
        ("qwen3", 1, "AnyLayers", ("--enable-mixed-chunk",)),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("qwen3", 16, "AnyChoice", ("--disable-overlap-schedule",)),
                ("llama", 16, "AnyLayers", ()),
                ("llama", 1, "AnyChoice", ("--enable-mixed-chunk", "--disable-overlap-schedule")),
            )
        ),
    ],
)
def test_plans_that_change_in_every_step(
    start, model, prompts, resident, tmp_path, arch, page, plan, flags
) -> None:
    own = (*ON, *flags, "--page-size", str(page))
    with layered(start, tmp_path, f"{PLANS}:{plan}", *own, model=model[arch]) as served:
        changed: list[bool] = []
        for turn in range(TURNS):
            assert ask(served, prompts) == resident[arch]
            noted = steps(tmp_path)
            # One stream alone may well get the same layers twice.
            batches = [step["layouts"] for step in noted if len(step["running"]) > 8]
            changed = [a != b for a, b in itertools.pairwise(batches)]
            if turn > 0 and len(changed) >= NEW // 2:
                break
        else:
            raise AssertionError(f"no batch, or too few: {len(changed)}")
        assert noted[0]["cells"] == 1280 // page
        assert sum(changed) > 0.8 * len(changed), "the plans must change"
        served.flush_when_idle()
        served.assert_clean()


@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_served_whole(
    start, model, prompts, resident, tmp_path
) -> None:
    """The shipped planner: all twelve streams decode together, in a third of what they need."""
    own = (*ON, "--page-size", "1")
    with layered(start, tmp_path, f"{PLANS}:Noted", *own, model=model["qwen3"]) as served:
        for _ in range(TURNS):
            assert ask(served, prompts) == resident["qwen3"]
            noted = steps(tmp_path)
            whole = [step["running"] for step in noted if len(step["running"]) == len(prompts)]
            most, cells = max(map(sum, whole), default=0), noted[0]["cells"]
            print(f"{most} pages in one step need {4 * most} cells; {cells} are there")
            if 4 * most > 2 * cells:
                break
        else:
            raise AssertionError("all twelve never decode together")
        served.assert_clean()


@pytest.mark.slow
def test_clients_that_leave_and_pauses_leak_nothing(
    start, model, prompts, resident, tmp_path
) -> None:
    """Aborts at any time, and SGLang's retraction of all streams: the rest says the same."""
    chance = random.Random(4)
    own = (*ON, "--page-size", "16")
    with layered(start, tmp_path, f"{PLANS}:AnyLayers", *own, model=model["qwen3"]) as served:
        for _ in range(3):
            leaving = [
                lambda ids=ids: served.leave(ids, chance.uniform(0.0, 1.0)) for ids in prompts[:6]
            ]
            staying = [lambda: ask(served, prompts[6:])]
            assert served.together([*leaving, *staying])[-1] == resident["qwen3"][6:]
        served.flush_when_idle()
        beams = served.generate(prompts[0], beam_width=2)
        assert beams.status == 400
        assert "not supported with --tokenflow-layerwise" in str(beams.body)
        with_pause = served.together([lambda: ask(served, prompts), lambda: pause(served)])
        assert with_pause[0] == resident["qwen3"]
        served.flush_when_idle()
        served.assert_clean()


def pause(served: Any) -> None:
    time.sleep(0.5)
    assert served.post("/pause_generation", {"mode": "retract"}).status == 200
    assert served.post("/continue_generation", {}).status == 200


@pytest.mark.parametrize("break_", ["no-layer-fence", "no-layer-store"])
def test_what_is_broken_on_purpose_is_noticed(
    start, model, prompts, resident, tmp_path, break_
) -> None:
    own = (*ON, "--page-size", "1")
    plan = f"{PLANS}:AnyLayers"
    with layered(start, tmp_path, plan, *own, model=model["qwen3"], break_=break_) as served:
        try:
            # What the prompts read depends on which of them meet.
            said = (ask(served, prompts) for _ in range(TURNS))
            noticed = any(each != resident["qwen3"] for each in said)
        except (AssertionError, OSError, http.client.HTTPException):
            return  # a server that is told nonsense need not survive it
        assert noticed


def test_two_ranks(start, model, prompts, resident, tmp_path) -> None:
    own = (*ON, "--page-size", "16", "--tp-size", "2")
    with layered(start, tmp_path, f"{PLANS}:AnyLayers", *own, model=model["qwen3"]) as served:
        assert [tokens for tokens, _ in ask(served, prompts)] == [t for t, _ in resident["qwen3"]]
        served.assert_clean()


@pytest.mark.slow
def test_what_moves_is_counted(start, model, prompts, resident, tmp_path) -> None:
    """On the metrics page of SGLang's own scheduler."""
    own = (*ON, "--page-size", "1", "--enable-metrics")
    with layered(start, tmp_path, f"{PLANS}:AnyLayers", *own, model=model["qwen3"]) as served:
        assert ask(served, prompts) == resident["qwen3"]
        deadline = time.monotonic() + 20
        while not served.total("tokenflow:layers_staged_tokens_total"):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert served.total("tokenflow:layers_moved_tokens_total") > 0
