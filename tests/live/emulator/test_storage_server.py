"""Real SGLang with an emulated storage behind HiCache: what is read back is what was computed."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tokenflow_sgl_emulator.storage.storage_flags import storage_flags

pytestmark = pytest.mark.engine

PAGE, PAGES, NEW = 16, 20, 12
PROMPT = PAGES * PAGE + 7
EXACT, OTHER = 1e-4, 1e-2
"""Log-probabilities that are the same differ by at most `EXACT`, others by more than `OTHER`."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


def flags(folder: Path) -> tuple[str, ...]:
    storage = storage_flags(
        prefetch_tokens=PAGE,
        read_gbps=1.0,
        directory=str(folder / "pages"),
        control=str(folder / "control"),
        log=str(folder / "log"),
    )
    own = ("--page-size", str(PAGE), "--max-total-tokens", "1024", "--hicache-ratio", "2")
    return (*storage, *own, "--hicache-write-policy", "write_through", "--random-seed", "1")


@pytest.fixture(scope="module")
def server(start_server: Any, models: dict[str, Path], folder: Path) -> Iterator[Any]:
    with start_server(models["qwen3"], *flags(folder)) as running:
        yield running


@pytest.fixture
def control(folder: Path) -> Iterator[Path]:
    path = folder / "control"
    yield path
    path.unlink(missing_ok=True)


def prompt(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(10, 500) for _ in range(PROMPT)]


Answer = tuple[list[int], list[float], int]


def ask(server: Any, ids: list[int]) -> Answer:
    """Tokens, their log-probabilities, and how many tokens of the prompt came from the storage."""
    (answer,) = server.generate([ids], NEW, return_logprob=True)
    meta = answer["meta_info"]
    chances = [float(chance) for chance, *_ in meta["output_token_logprobs"]]
    return answer["output_ids"], chances, (meta["cached_tokens_details"] or {}).get("storage", 0)


def stored(server: Any, ids: list[int]) -> Answer:
    """The undisturbed answer; afterwards the prompt is in the storage and nowhere else."""
    answer = ask(server, ids)
    assert answer[2] == 0, "nothing has been there before"
    server.flush_when_idle()  # device and host, once everything is written
    return answer


def assert_same(answer: Answer, wanted: Answer) -> None:
    assert answer[0] == wanted[0]
    assert answer[1] == pytest.approx(wanted[1], abs=EXACT)


def test_a_prompt_comes_back_from_the_storage(server: Any) -> None:
    wanted = stored(server, prompt(1))
    again = ask(server, prompt(1))
    assert again[2] == PAGES * PAGE
    assert_same(again, wanted)


def test_another_prompt_shares_what_it_begins_with(server: Any) -> None:
    stored(server, prompt(2))
    other = [*prompt(2)[: 9 * PAGE], *prompt(3)]
    from_storage = ask(server, other)
    assert from_storage[2] == 9 * PAGE
    server.flush_when_idle()
    # All of it comes from the storage now, the part that was read and the part that was computed.
    again = ask(server, other)
    assert again[2] == len(other) // PAGE * PAGE
    assert_same(again, from_storage)


@pytest.mark.parametrize(
    ("fault", "read"),
    [
        ({"dead_after_pages": 5}, 5),
        ({"dead_after_s": 0.0, "dead_reply_s": 0.2}, 0),
        ({"missing": 1.0}, 0),
        ({"corrupt": 1.0}, 0),
        ({"shifted": 1.0}, 0),
        ({"raising": 1.0}, 0),
        ({"slow_factor": 50.0}, PAGES),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else str(value),
)
def test_bad_storage_costs_time_and_nothing_else(
    server: Any, control: Path, fault: dict[str, Any], read: int
) -> None:
    ids = prompt(100 + sum(json.dumps(fault).encode()))
    wanted = stored(server, ids)
    control.write_text(json.dumps(fault))
    answer = ask(server, ids)
    assert answer[2] == read * PAGE
    assert_same(answer, wanted)
    server.flush_when_idle()
    control.unlink()
    whole = ask(server, ids)
    assert whole[2] == PAGES * PAGE, "the link is whole again"
    assert_same(whole, wanted)
    server.flush_when_idle()


def test_some_pages_are_missing(server: Any, control: Path) -> None:
    """SGLang uses what comes before the first of them."""
    wanted = [stored(server, prompt(200 + number)) for number in range(4)]
    control.write_text('{"missing": 0.1}')
    answers = [ask(server, prompt(200 + number)) for number in range(4)]
    for answer, each in zip(answers, wanted, strict=True):
        assert_same(answer, each)
    read = {answer[2] // PAGE for answer in answers}
    assert len(read) > 1 and min(read) < PAGES, "the control: pages were missing, at some place"


def test_wrong_pages_show(server: Any, control: Path) -> None:
    """The control of all the others: pages that are read are what the answer is made of.

    Attention does not see the order of keys, so pages that have changed places show only to a
    request that shares some of them.
    """
    fork = [*prompt(300)[: 10 * PAGE], *prompt(301)[: 2 * PAGE]]
    wanted, wanted_of_fork = stored(server, prompt(300)), ask(server, fork)
    server.flush_when_idle()
    control.write_text('{"shifted": 1.0, "checksum": false}')
    answer = ask(server, prompt(300))
    assert answer[2] == PAGES * PAGE
    assert_same(answer, wanted)
    of_fork = ask(server, fork)
    server.flush_when_idle()
    worst = max(abs(a - b) for a, b in zip(of_fork[1], wanted_of_fork[1], strict=True))
    assert of_fork[0] != wanted_of_fork[0] or worst > OTHER


@pytest.mark.slow
def test_pages_outlive_the_server(
    server: Any, start_server: Any, models: dict[str, Path], folder: Path
) -> None:
    wanted = stored(server, prompt(400))
    with start_server(models["qwen3"], *flags(folder)) as restarted:
        again = ask(restarted, prompt(400))
    assert again[2] == PAGES * PAGE
    assert_same(again, wanted)


@pytest.mark.slow
def test_two_ranks_have_their_own_pages(
    start_server: Any, models: dict[str, Path], tmp_path: Path
) -> None:
    with start_server(models["qwen3"], *flags(tmp_path), "--tp-size", "2") as server:
        wanted = stored(server, prompt(500))
        again = ask(server, prompt(500))
        assert again[2] == PAGES * PAGE
        assert_same(again, wanted)
        server.flush_when_idle()
        (tmp_path / "control").write_text('{"missing": 0.2}')
        # Each rank lacks pages of its own: what both have counts.
        partly = ask(server, prompt(500))
        assert_same(partly, wanted)
        assert partly[2] < PAGES * PAGE
    kept = [{page.name for page in rank.iterdir()} for rank in (tmp_path / "pages").iterdir()]
    assert len(kept) == 2 and kept[0] == kept[1]


def test_a_bad_configuration_is_named(
    start_server: Any, models: dict[str, Path], tmp_path: Path
) -> None:
    from tokenflow_sgl.lab.demo.server import ServerError

    bad = [flag.replace('"read_gbps": 1.0', '"read_gbps": -1') for flag in flags(tmp_path)]
    said = r"read_gbps of the storage link is -1; allowed is a number above 0"
    with pytest.raises(ServerError, match=said), start_server(models["qwen3"], *bad):
        pass
