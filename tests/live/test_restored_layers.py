"""A prefix of which some layers are computed and the others fetched gives stock SGLang's tokens.

As in `test_restoration`, each split is asked the prompt and one that forks within the prefix: the
fork reads the KV of fetched layers in the middle.
"""

from __future__ import annotations

import concurrent.futures
import http.client
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers.restoring import LAYERS, NEW, SLOW, Restoring, Said, restoring
from servers.tuned import CHECK_RANKS

from tokenflow_sgl_emulator.models import make_tiny_model

pytestmark = pytest.mark.engine

CHUNK = 512
"""Tokens of a prefill step: a prompt is restored by layers only if it is computed in one."""
TRIES = 20
"""Until layers of a file come late: nothing makes them slower."""
BY_LAYERS = ("--hicache-mem-layout", "layer_first")
DIRECT = ("--hicache-mem-layout", "page_first_direct", "--hicache-io-backend", "direct")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """With more layers than the one that most tests use."""
    return make_tiny_model(tmp_path_factory.mktemp("model"), arch="qwen3", layers=LAYERS)


@pytest.fixture(scope="module")
def stock(start, tmp_path_factory, model) -> Iterator[Restoring]:
    """SGLang's own scheduler, with nothing else of ours."""
    folder = tmp_path_factory.mktemp("stock")
    with restoring(start, folder, *BY_LAYERS, page=16, model=model, chunk=CHUNK) as server:
        yield server


@pytest.fixture(scope="module")
def wanted(stock) -> tuple[Said, Said]:
    return stock.computed()


def test_every_split_gives_the_same_tokens(stock, wanted) -> None:
    stock.check_layers((1, 2, 3), wanted)
    stock.served.assert_clean()


@pytest.mark.parametrize("said", ["layers 0", "layers 4", "layers +1"])
def test_all_of_them_from_one_source_and_one_layer_at_a_time(stock, wanted, said) -> None:
    """All fetched, all computed; and as many computed in single steps as have not come by then."""
    stock.split(said)
    before = stock.by_layers()[0]
    prompt, fork = stock.both_elsewhere()
    assert prompt.like(wanted[0])
    assert fork.like(wanted[1])
    assert said == "layers +1" or stock.by_layers()[0] == before
    stock.served.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "flags"),
    [
        (1, ("--disable-overlap-schedule", *BY_LAYERS)),
        (64, ("--scheduler", "tokenflow", *BY_LAYERS)),
        (16, DIRECT),
        (16, ("--scheduler", "tokenflow", "--tp-size", "2", CHECK_RANKS, *BY_LAYERS)),
    ],
    ids=("page 1, no overlap", "page 64, tokenflow", "page_first_direct", "two ranks"),
)
def test_under_other_settings_too(start, wanted, model, tmp_path, page, flags) -> None:
    gbps = SLOW / 5 if "--tp-size" in flags else SLOW
    made = restoring(start, tmp_path, *flags, page=page, gbps=gbps, model=model, chunk=CHUNK)
    with made as server:
        server.computed()
        server.check_layers((1, 2, 3), wanted)
        server.served.assert_clean()


@pytest.mark.slow
def test_another_model(start, tmp_path) -> None:
    llama = make_tiny_model(tmp_path / "llama", arch="llama", layers=LAYERS)
    with restoring(start, tmp_path, *BY_LAYERS, page=16, model=llama, chunk=CHUNK) as server:
        server.check_layers((1, 2, 3), server.computed())
        server.served.assert_clean()


@pytest.mark.slow
def test_clients_that_leave_do_not_hurt_the_others(stock, wanted) -> None:
    """Aborted in its query, its fetch, or while its layers are computed."""
    served, rng = stock.served, random.Random(9)
    stock.split("layers 2")

    def stay(ids: list[int]) -> Any:
        return lambda: served.generate(ids, max_new_tokens=NEW, return_logprob=True)

    def leave(number: int, seconds: float) -> Any:
        return lambda: served.leave(stock._prompt, seconds, rid=f"gone-{number}")

    for round_ in range(3):
        calls = [stay(stock._prompt), stay(stock._fork), stay(stock._prompt[:200])]
        calls += [leave(10 * round_ + i, rng.uniform(0.0, 1.5)) for i in range(4)]
        answers = served.together(calls)[:2]
        for answer, each in zip(answers, wanted, strict=True):
            assert answer.body["output_ids"] == each.tokens
        served.flush_when_idle()
    for seconds in (0.3, 0.6, 0.9):  # all that is under way
        served.leave(stock._prompt, seconds)
        served.flush_when_idle()
    served.assert_clean()


def test_what_two_prompts_share_is_fetched_once(stock, wanted) -> None:
    """The second one waits until the first one's layers are complete."""
    stock.split("layers 2")

    def fetched_once() -> str:
        before = stock.by_layers()[0]
        calls = [lambda ids=ids: stock.ask(ids) for ids in (stock._prompt, stock._fork)]
        said = stock.served.together(calls)
        assert all(map(Said.like, said, wanted))
        stock.served.flush_when_idle()
        done = stock.by_layers()[0] - before
        return "" if done == 1.0 else f"{done} of both were restored by layers"

    stock.try_until_right(fetched_once)


@pytest.mark.parametrize(
    ("fault", "fails"),
    [
        # The 96 pages of the prompt before count: they are written.
        ({"dead_after_pages": 96 + 30}, True),
        ({"missing": 0.3}, True),
        pytest.param({"corrupt": 0.3}, True, marks=pytest.mark.slow),
        pytest.param({"slow_factor": 3.0}, False, marks=pytest.mark.slow),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else str(value),
)
def test_a_bad_storage_costs_time_only(stock, wanted, fault, fails) -> None:
    stock.split("layers 1")

    def failures() -> float:
        return stock.served.total("tokenflow:restore_fetch_failures_total")

    def asked() -> str:
        before = failures()
        prompt, fork = stock.both_elsewhere()
        assert prompt.like(wanted[0])
        assert fork.like(wanted[1])
        failed = failures() > before
        assert fails or not failed
        # A query that a busy machine answers late is given up, and then nothing is fetched.
        return "" if failed == fails else "no fetch has failed"

    stock.try_until_right(asked, **fault)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [BY_LAYERS, DIRECT], ids=("layer_first", "page_first_direct"))
def test_layers_come_from_sglangs_files(start, model, tmp_path, layout) -> None:
    """And files with other numbers would be noticed."""
    files = tmp_path / "files"
    own: Any = {"page": 16, "model": model, "chunk": CHUNK, "files": files}
    with restoring(start, tmp_path, *layout, **own) as server:
        wanted = server.computed()
        server.split("layers 2")
        for _ in range(TRIES):
            before = server.by_layers()[0]
            assert all(map(Said.like, server.both_elsewhere(), wanted))
            if server.by_layers()[0] > before:
                break
        else:
            raise AssertionError("all layers have always come before the first one was computed")
        for path in files.glob("*.bin"):
            path.write_bytes(np.frombuffer(path.read_bytes(), np.float32)[::-1].tobytes())
        assert not all(map(Said.like, server.both_elsewhere(), wanted))


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_pause_keeps_no_layers(stock, wanted, mode) -> None:
    stock.split("layers 2")
    for seconds in (0.2, 0.5):  # in its query, its fetch or while its layers are computed
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(stock.ask, stock._prompt)
            time.sleep(seconds)
            assert stock.served.post("/pause_generation", {"mode": mode}).status == 200
            if mode == "retract":
                stock.served.flush_when_idle()
            assert stock.served.post("/continue_generation", {}).status == 200
            assert asked.result().like(wanted[0])
        stock.served.flush_when_idle()


@pytest.mark.slow
@pytest.mark.parametrize("break_", ["no-layer-copy", "early-layers"])
def test_layers_that_are_not_there_would_be_noticed(start, wanted, model, tmp_path, break_) -> None:
    """Of one page they were not copied, or none has arrived when the prefill is finished."""
    broken: Any = {"page": 16, "model": model, "chunk": CHUNK, "break_": break_}
    with restoring(start, tmp_path, *BY_LAYERS, **broken) as server:
        server.computed()
        server.split("layers 2")

        def noticed() -> str:
            before = server.by_layers()[0]
            try:
                said = server.both_elsewhere()
            except (AssertionError, OSError, http.client.HTTPException):
                return ""  # the server did not survive it, or never becomes idle
            if server.by_layers()[0] == before:
                return "it was not restored by layers"
            same = all(map(Said.like, said, wanted))
            return "layers that are not there are not read" if same else ""

        server.try_until_right(noticed)
