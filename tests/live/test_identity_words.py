"""Pauses change no token of a trained model, nor any of its log probabilities.

Its logits are unlike a random model's: a few tokens have nearly all of the odds, answers end by
themselves, and text follows grammars. All questions are asked at once, half of them greedily and
half with a seed, and at every token the whole vocabulary is compared with stock SGLang's.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from servers.restoring import restoring
from words.cases import (
    ADAPTER,
    CONTROLS,
    ENDED,
    FEW_CASES,
    MORE_CASES,
    PARSER,
    RANKS,
    Asked,
    Case,
    asked,
)
from words.chats import encoder
from words.questions import FEW, QUESTIONS, Question
from words.trial import SEEDED, Comparison, Trial, Truth

from tokenflow_sgl_emulator.models import make_tiny_lora
from tokenflow_sgl_emulator.trained.shipped import (
    SMOLLM2,
    NotInstalledError,
    converted,
    kept_in,
)

pytestmark = pytest.mark.engine

PARTS = 4
"""In which all questions are asked."""
TOKENS = 20
"""Of an answer, at most."""
MODEL_LAYERS = 30
STORAGE_GBPS = 0.02
"""So slow that the tail of a text takes some seconds."""
PASSAGE = Path(__file__).parents[1] / "helpers/words/passage.txt"
NOTICED = 1e-3
"""Difference of log probabilities that what is broken makes at least, somewhere."""
Truths = Callable[[Asked, Sequence[Question]], Truth]


@pytest.fixture(scope="module")
def model() -> Path:
    try:
        return converted(SMOLLM2, "float32")
    except NotInstalledError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def trial(start, model, tmp_path_factory) -> Iterator[Trial]:
    folder: Path = tmp_path_factory.mktemp("words")
    yield Trial(start, model, encoder(model), folder)
    shutil.rmtree(folder)  # hundreds of megabytes


@pytest.fixture(scope="module")
def served_as(model, tmp_path_factory) -> Callable[[Asked], tuple[tuple[str, ...], Path]]:
    """Options and model of both servers that are compared."""

    def found(kind: Asked) -> tuple[tuple[str, ...], Path]:
        match kind:
            case Asked.ADAPTED:
                folder = tmp_path_factory.getbasetemp() / "adapter"
                if not folder.exists():
                    make_tiny_lora(folder, model, alpha=0.25)  # milder than of a random model
                return ("--lora-paths", f"{ADAPTER}={folder}"), model
            case Asked.RANKS:
                return RANKS, model
            case Asked.THINKING:
                return PARSER, model
            case Asked.ENDING:
                return ENDED, model
            case Asked.HALF:
                return ("--dtype", "bfloat16"), converted(SMOLLM2, "bfloat16")
        return (), model

    return found


@pytest.fixture(scope="module")
def truths(trial, served_as) -> Truths:
    """What stock SGLang says; asked once."""
    known: dict[tuple[Asked, tuple[int, ...]], Truth] = {}

    def found(kind: Asked, questions: Sequence[Question]) -> Truth:
        key = kind, tuple(question.number for question in questions)
        if key not in known:
            flags, model = served_as(kind)
            name = f"{kind}-{len(known)}"
            how = asked(kind, TOKENS)
            known[key] = trial.truth(name, questions, *SEEDED, *flags, how=how, model=model)
        return known[key]

    return found


@pytest.fixture(scope="module")
def compare(trial, truths, served_as) -> Callable[..., Comparison]:
    def compared(name: str, case: Case, questions: Sequence[Question], **env: str) -> Comparison:
        truth = truths(case.kind, questions)
        chosen = [each for each in questions if not (case.greedy and each.number % 2)]
        flags, model = served_as(case.kind)
        began = time.monotonic()
        how: Any = asked(case.kind, TOKENS, stream=case.stream)
        flags = (*case.flags, *flags, *(SEEDED if case.seeded else ()))
        found: Comparison = trial.compare(
            truth, chosen, *flags, how=how, env={**case.env, **env}, model=model
        )
        print(f"\n{found.said(name)} {dict(found.pauses)} {time.monotonic() - began:.0f} s")
        return found

    return compared


def judge(case: Case, found: Comparison, asked_of: int) -> None:
    assert found.other == [], "questions whose answers have other tokens"
    assert found.rows == found.tokens or not case.every
    assert found.rows >= asked_of
    assert found.worst <= case.same
    assert found.preemptions >= case.pauses * asked_of, "the test must disturb"
    for name, least in case.least.items():
        assert found.counters[name] >= least, name
    for name, most in case.most.items():
        assert found.counters[name] <= most, name


@pytest.mark.parametrize("name", FEW_CASES)
def test_some_questions(compare, name) -> None:
    case = FEW_CASES[name]
    judge(case, compare(name, case, FEW), len(FEW[::2] if case.greedy else FEW))


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_CASES)
def test_more_servers(compare, name) -> None:
    case = MORE_CASES[name]
    judge(case, compare(name, case, FEW), len(FEW))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_all_questions(compare, part) -> None:
    """All 64, in parts that a busy machine answers before clients leave."""
    case, questions = FEW_CASES["HiCache"], QUESTIONS[part::PARTS]
    judge(case, compare(f"part {part}", case, questions), len(questions))


@pytest.mark.parametrize("broken", ["no-copy", pytest.param("no-landing", marks=pytest.mark.slow)])
def test_what_is_broken_on_purpose_is_noticed(compare, broken) -> None:
    case = FEW_CASES["HiCache"]
    found = compare(broken, case, FEW, TOKENFLOW_TEST_BREAK=broken)
    assert found.worst > NOTICED, CONTROLS[broken]
    assert found.other, "other tokens, too"


@pytest.mark.slow
def test_the_same_request_alone_says_the_same(trial, truths) -> None:
    """The truth is of a batch: stock SGLang alone says it, too."""
    truth = truths(Asked.PLAIN, FEW)
    how = asked(Asked.PLAIN, TOKENS)
    with trial.disturbed(truth, *SEEDED, "--max-total-tokens", "4096") as (served, compared, _):
        for question in FEW[:3]:
            assert trial.ask(served, [question], how) == [truth.tokens[question.number]]
        rows = [line.split() for line in compared.read_text().splitlines()]
    assert len(rows) >= 3 and all(bits == "1" for *_, bits in rows), rows


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tokens", "layers"])
def test_a_stored_prefix_comes_back_as_it_was(start, model, tmp_path, way) -> None:
    """Part of a text is computed again while the rest comes from the storage."""
    text = " ".join([PASSAGE.read_text(), *(each.text for each in QUESTIONS)])
    flags = ("--scheduler", "tokenflow", "--hicache-mem-layout", "layer_first")
    given: Any = {"page": 16, "model": model, "chunk": 512, "gbps": STORAGE_GBPS}
    with restoring(start, tmp_path, *flags, **given) as server:
        server.read(encoder(model).plain(text), MODEL_LAYERS)
        wanted = server.computed()
        if way == "tokens":
            server.check_splits((128, 256), wanted)
        else:
            server.check_layers((10, 20), wanted)
        server.served.assert_clean()


def test_it_is_kept_where_it_is_looked_for(model) -> None:
    assert model == kept_in(SMOLLM2, "float32")
