"""Asks servers with the trained model, and compares tokens and the whole vocabulary's odds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from servers.client import Served
from servers.fixtures import SERVER_SIDE

from tokenflow_sgl.lab.observe.stream_events import read_log
from words.questions import Question

PROGRAM = str(SERVER_SIDE / "whole_vocabulary.py")
NOTES, COMPARED = "TOKENFLOW_TEST_VOCABULARY", "TOKENFLOW_TEST_VOCABULARY_COMPARED"
SEEDED = ("--enable-deterministic-inference",)
"""So that a seed says what is drawn."""
AMPLE = ("--max-total-tokens", "16384")
How = Callable[[Question], dict[str, Any]]
AT_ONCE = 16
"""Questions that are asked together."""
PAGE = 16
"""Tokens between two places that count as ends of pages."""


@dataclass(frozen=True)
class Truth:
    """What an undisturbed server said.

    Attributes:
        tokens: Of each answer, by the question's number.
        notes: Folder with the logits of each of them.
    """

    tokens: dict[int, list[int]]
    notes: Path


@dataclass(frozen=True)
class Comparison:
    """How a disturbed server compares.

    Attributes:
        other: Numbers of questions whose answers have other tokens.
        tokens: Of all answers together.
        rows: Tokens at which the whole vocabulary was compared.
        worst: The greatest difference of log probabilities there.
        other_bits: How many of them have other logits in any bit.
        pauses: Where streams were paused, and how often.
        counters: The server's metrics of ours.
    """

    other: list[int]
    tokens: int
    rows: int
    worst: float
    other_bits: int
    pauses: Counter[str]
    counters: dict[str, float]

    @property
    def preemptions(self) -> int:
        """Streams that were paused, each time counted."""
        return int(self.counters.get("preemptions_total", 0))

    def said(self, name: str) -> str:
        """A row of a table."""
        worst = "-" if not self.rows else f"{self.worst:.1e}"
        return (
            f"| {name} | {self.preemptions} | {self.tokens} | {self.rows} | {worst} | "
            f"{self.other_bits} | {len(self.other)} |"
        )


class Trial:
    """The servers of these tests.

    Args:
        start: The fixture.
        model: Folder of the trained model.
        encode: A user's text as the tokens of a prompt.
        folder: For notes and logs.
    """

    def __init__(
        self, start: Any, model: Path, encode: Callable[[str], list[int]], folder: Path
    ) -> None:
        self._start, self.model, self.encode, self.folder = start, model, encode, folder
        self._servers = 0

    def ask(self, served: Served, questions: Sequence[Question], how: How) -> list[list[int]]:
        """Some at once, so that even on a busy machine no answer comes too late.

        how: what a question is asked with, beside its sampling.
        """
        calls = [
            partial(
                served.generate,
                self.encode(each.text),
                rid=name_of(each),
                **{**each.sampling, **how(each)},
            )
            for each in questions
        ]
        answers = []
        for first in range(0, len(calls), AT_ONCE):
            answers += served.together(calls[first : first + AT_ONCE])
        assert [answer.status for answer in answers] == [200] * len(calls), answers
        return [answer.body["output_ids"] for answer in answers]

    @contextmanager
    def undisturbed(self, *flags: str, notes: Path, **given: Any) -> Iterator[Served]:
        """Stock SGLang, which notes all logits."""
        notes.mkdir()
        own = {"model": self.model, "program": PROGRAM, "env": {NOTES: str(notes)}, **given}
        with self._start(*flags, **own) as served:
            yield served

    def truth(
        self, name: str, questions: Sequence[Question], *flags: str, how: How, **given: Any
    ) -> Truth:
        """What stock SGLang says with memory for everything, all asked at once."""
        notes = self.folder / name
        with self.undisturbed(*AMPLE, *flags, notes=notes, **given) as served:
            tokens = self.ask(served, questions, how)
            served.assert_clean()
        numbers = [question.number for question in questions]
        return Truth(dict(zip(numbers, tokens, strict=True)), notes)

    @contextmanager
    def disturbed(
        self, truth: Truth, *flags: str, env: dict[str, str] | None = None, **given: Any
    ) -> Iterator[tuple[Served, Path, Path]]:
        """A server that compares with that; also its file of comparisons and its decision log."""
        self._servers += 1
        compared, log = (self.folder / f"{each}-{self._servers}" for each in ("compared", "log"))
        compared.touch()
        env = {NOTES: str(truth.notes), COMPARED: str(compared), **(env or {})}
        own = {"model": self.model, "program": PROGRAM, "env": env, **given}
        if "--scheduler" in flags:
            flags = (*flags, "--tokenflow-decision-log", str(log))
        with self._start(*flags, **own) as served:
            yield served, compared, log

    def compare(
        self,
        truth: Truth,
        questions: Sequence[Question],
        *flags: str,
        how: How,
        env: dict[str, str] | None = None,
        **given: Any,
    ) -> Comparison:
        """Ask a server with these flags the same."""
        with self.disturbed(truth, *flags, env=env, **given) as (served, compared, log):
            said = self.ask(served, questions, how)
            if "TOKENFLOW_TEST_BREAK" not in (env or {}):
                served.assert_clean()
            assert served.total("tokenflow:policy_errors_total") == 0
            counters = {
                name.removeprefix("tokenflow:"): served.total(name)
                for name in {name for name, _ in served.metrics()}
            }
        other = [
            question.number
            for question, one in zip(questions, said, strict=True)
            if one != truth.tokens[question.number]
        ]
        prompts = {name_of(each): len(self.encode(each.text)) for each in questions}
        answers = {
            name_of(question): len(each) for question, each in zip(questions, said, strict=True)
        }
        rows = [
            row for question in questions for row in rows_of(compared, question, prompts, answers)
        ]
        return Comparison(
            other,
            sum(answers.values()),
            len(rows),
            max((worst for worst, _ in rows), default=0.0),
            sum(not bits for _, bits in rows),
            paused_at(log, prompts, answers) if log.exists() else Counter(),
            counters,
        )


def rows_of(
    compared: Path, question: Question, prompts: dict[str, int], answers: dict[str, int]
) -> list[tuple[float, bool]]:
    """Greatest difference and whether all bits are equal, of each token of an answer.

    A server looks at more: at what it samples behind a part of a prompt, and behind the end of an
    answer, and throws away.
    """
    first = prompts[name_of(question)] - 1
    found: dict[int, tuple[float, bool]] = {}
    for line in compared.read_text().splitlines():
        of, position, worst, bits = line.split()
        if of == name_of(question):
            found[int(position) - first] = (float(worst), bits == "1")
    return [found[index] for index in range(answers[name_of(question)]) if index in found]


def name_of(question: Question) -> str:
    """Its request's."""
    return f"question-{question.number}"


def paused_at(log: Path, prompts: dict[str, int], answers: dict[str, int]) -> Counter[str]:
    """How often streams were paused where, by the decision log.

    prompts, answers: tokens of each, by request.
    """
    found: Counter[str] = Counter()
    for line in read_log(log):
        lengths = {each["rid"]: each["generated"] for each in line["candidates"]}
        for rid in (each["rid"] for each in line["preempt"]):
            if rid in prompts and rid in lengths:  # not SGLang's own at the start
                found[place(prompts[rid], lengths[rid], answers[rid])] += 1
    return found


def place(prompt: int, generated: int, answer: int) -> str:
    """What kind of position a stream has there; all counts are of tokens."""
    if generated <= 1:
        return "first token"
    if generated >= answer - 2:
        return "last tokens"
    return "end of a page" if (prompt + generated) % PAGE == 0 else "within a page"


PLACES = ("first token", "within a page", "end of a page", "last tokens")
