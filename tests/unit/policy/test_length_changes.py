"""A server that knows answers of one length notices those of another while they are under way."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.contract import Traits
from tokenflow_sgl.contract.lengths import GRID, cell_of
from tokenflow_sgl.policy import learned_lengths, length_changes
from tokenflow_sgl.policy.learned_lengths import CAUTION, CHANGE, FADES, REFRESHED, LearnedLengths
from tokenflow_sgl.policy.length_changes import MOMENTS, LengthChanges
from tokenflow_sgl.policy.length_family import family

STEP = 5
"""Tokens that streams get between two looks."""


class Served:
    """So many streams at a time, of lengths that are drawn; one that ends makes place for another.

    Attributes:
        learned: Sees them.
        careful: Mean length that its careful curve expected at each look, tokens.
    """

    def __init__(
        self, learned: LearnedLengths, prompt: int = 100, *, thinking: bool = False
    ) -> None:
        self.learned = learned
        self.kind = learned.kind(Traits(prompt, 4096, thinking=thinking))
        self.careful: list[float] = []
        self._came = np.zeros(0, dtype=np.int64)
        self._whole = np.zeros(0, dtype=np.int64)

    def serve(self, lengths, together: int, *, to_the_end: bool = True) -> None:
        """Serve answers of these lengths until they have ended, or else until all have begun."""
        left = [int(length) for length in lengths]
        while left or (to_the_end and len(self._came)):
            begin = left[: together - len(self._came)]
            del left[: len(begin)]
            self.begin(begin)
            self.step()

    def begin(self, lengths) -> None:
        """Answers begin, of these lengths."""
        self._whole = np.append(self._whole, lengths).astype(np.int64)
        self._came = np.append(self._came, np.zeros(len(lengths), dtype=np.int64))

    def step(self) -> None:
        """All streams get some tokens, and the lengths are learned anew."""
        self._came += STEP
        over = self._came >= self._whole
        for length in self._whole[over].tolist():
            self.learned.ended(self.kind, length, cut_off=False)
        self._came, self._whole = self._came[~over], self._whole[~over]
        self.look()
        self.careful.append(self.mean()[1])

    def look(self) -> None:
        """Passes go by until a change has been looked for."""
        for _ in range(REFRESHED):
            self.mean()

    def mean(self) -> tuple[float, float]:
        """Mean length that is expected of a stream that begins: typical, careful."""
        found = self.learned.lengths(np.full(len(self._came), self.kind), self._came)
        of = np.array([self.kind]), np.array([0]), np.array([4096])
        typical, careful = (float(each.left(*of)[0]) for each in (found.typical, found.careful))
        return typical, careful


def short_then(lengths, *, thinking: bool = False) -> Served:
    """Thirty-five answers of about 35 tokens have ended; others begin."""
    served = Served(LearnedLengths(), thinking=thinking)
    rng = np.random.default_rng(0)
    served.serve(rng.normal(35, 8, 35).clip(16).astype(int), together=4)
    served.begin(lengths)
    return served


def test_longer_answers_are_noticed_before_any_ends() -> None:
    served = short_then(np.full(16, 2000))
    typical, careful = served.mean()
    assert typical == pytest.approx(35, rel=0.2)
    assert careful < 60
    while served.careful[-1] < 600:
        served.step()
        assert len(served._came) == 16
        assert served._came[0] < 80, "noticed when they are twice as long as those before"
    assert served.mean()[0] < 100, "single answers are taken for what has ended"


def test_a_change_is_looked_for_once_in_some_passes(monkeypatch) -> None:
    """It costs more than all the rest, and an answer may end in every pass."""
    looks = []
    look = LengthChanges.look
    monkeypatch.setattr(
        LengthChanges, "look", lambda changes, *given: looks.append(given) or look(changes, *given)
    )
    learned = LearnedLengths()
    kind = learned.kind(Traits(100, 4096))
    for number in range(5 * REFRESHED):
        learned.ended(kind, 100, cut_off=False)
        learned.lengths(np.array([kind]), np.array([number]))
        assert len(looks) == 1 + number // REFRESHED


def test_a_found_change_counts_what_has_ended_since() -> None:
    served = short_then(np.full(16, 2000))
    while served._came[0] < 100:
        served.step()
    changes = served.learned._changes
    before = changes.found()
    served.learned.ended(served.kind, 2000, cut_off=False)
    after = changes.found()
    assert after.probability == before.probability
    assert after.ended[0].sum() == before.ended[0].sum() + 1
    assert np.allclose(after.likely, family().log_likelihood(after.ended[0], after.cut[0]))


def test_without_a_test_for_changes_they_are_not(monkeypatch) -> None:
    monkeypatch.setattr(LengthChanges, "found", lambda _: None)
    served = short_then(np.full(16, 2000))
    while served._came[0] < 80:
        served.step()
    assert served.mean()[1] < 200


@pytest.mark.parametrize("thinking", [False, True])
def test_what_thinks_is_served_in_another_order_and_shows_no_change(thinking) -> None:
    """Most of each answer is thought, and of the thoughts the shortest so far go on.

    So long ones pile up behind those that begin, and once no more begin, all get long at once.
    Answers of two sizes are not log-normal, so what is left then looks like another kind.
    """
    served = Served(LearnedLengths(), thinking=thinking)
    rng = np.random.default_rng(3)
    two = np.where(rng.random(600) < 0.2, rng.normal(1500, 200, 600), rng.normal(60, 10, 600))
    left = two.clip(20, 4000).astype(int).tolist()
    found = [0.0]
    while left or len(served._came) > 20:
        served.begin([left.pop() for _ in range(min(4, len(left)))])
        thinks = served._came < 0.8 * served._whole
        come = np.where(thinks, served._came, -1)
        goes = come <= np.sort(come)[min(len(come), 60) - 1]
        served._came += np.where(goes, 2 * STEP, 0) - STEP
        served.step()
        change = served.learned._changes.found()
        found.append(0.0 if change is None else change.probability)
    assert (max(found) > 0.9) is not thinking


@pytest.mark.parametrize("one_thinks", [False, True])
def test_a_stream_that_thinks_hides_no_change_of_the_others(one_thinks) -> None:
    """Clients of a model that can do without choose it; one that thinks on is not all of them."""
    served = short_then(np.full(16, 2000))
    thought = served.learned.kind(Traits(100, 4096, thinking=True)) if one_thinks else served.kind
    while served._came[0] < 100:
        served.step()
        kinds = np.append(np.full(len(served._came), served.kind), thought)
        came = np.append(served._came, 1000)
        for _ in range(REFRESHED):
            found = served.learned.lengths(kinds, came)
    fresh = np.array([served.kind]), np.array([0]), np.array([4096])
    assert found.careful.left(*fresh)[0] > 600


def test_longer_thoughts_change_nothing_for_others() -> None:
    served = short_then(np.full(4, 35))
    thought = served.learned.kind(Traits(100, 32_768, thinking=True))
    before = served.mean()[1]
    for _ in range(30):
        served.learned.ended(thought, 4000, cut_off=False)
        served.look()
    assert served.learned._changes.found().probability < 0.2
    # They are among all answers, which count a little for each kind.
    assert served.mean()[1] > before


def test_answers_like_those_before_are_no_change() -> None:
    served = short_then([])
    rng = np.random.default_rng(1)
    served.serve(rng.normal(35, 8, 200).clip(16).astype(int), together=16)
    assert np.percentile(served.careful, 95) < 60


def drained(seed: int, spread: str) -> float:
    """How probable a change looks at most while streams go on and none begins."""
    served = Served(LearnedLengths())
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(5.5, 1.0, 300) if spread == "wide" else rng.normal(600, 150, 300)
    served.serve(lengths.clip(4, 4000).astype(int), together=60, to_the_end=False)
    found = []
    while len(served._came):
        served.step()
        change = served.learned._changes.found()
        assert change is not None
        found.append(change.probability)
    return max(found)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spread", ["wide", "narrow"])
def test_that_none_begins_is_no_change(seed, spread) -> None:
    """By a curve that hardly any answer follows so far, those that did have no way to go on."""
    assert drained(seed, spread) < 0.1


def test_control_logarithms_that_are_cut_off_take_it_for_one(monkeypatch) -> None:
    exact = family()
    cut_off = dataclasses.replace(
        exact,
        log_survival=np.maximum(exact.log_survival, -60.0),
        log_mass=np.maximum(exact.log_mass, -60.0),
    )
    for module in (length_changes, learned_lengths):
        monkeypatch.setattr(module, "family", lambda: cut_off)
    assert drained(0, "narrow") > 0.9


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mixed", [False, True])
def test_long_ones_among_short_ones_are_no_change(seed, mixed) -> None:
    """Of those under way long ones are more than of those that begin, always."""
    rng = np.random.default_rng(seed)
    spread = rng.lognormal(np.log(150), 1.2, 400)
    two = np.where(rng.random(400) < 0.2, rng.normal(1500, 200, 400), rng.normal(60, 10, 400))
    drawn = (two if mixed else spread).clip(4, 4000).astype(int)
    served = Served(LearnedLengths())
    served.serve(drawn[:200], together=40, to_the_end=False)
    seen, found = len(served.careful), []
    for length in drawn[200:].tolist():
        served.begin([length])
        while len(served._came) >= 40:
            served.step()
            found.append(served.learned._changes.found().probability)
    looks = np.array(served.careful[seen:]) / drawn.mean()
    assert max(found) < 1.0 - CAUTION
    assert np.median(looks) < 1.5
    assert mixed or (looks < 2.0).all()


@settings(max_examples=25, deadline=None)
@given(
    before=st.lists(st.integers(1, 4096), min_size=1, max_size=40),
    now=st.lists(st.integers(0, 4096), min_size=1, max_size=40),
)
def test_never_less_than_what_was_learned_says(before, now) -> None:
    """A change to shorter answers is believed when they have ended."""
    curves = []
    for heeds in (True, False):
        learned = LearnedLengths()
        if not heeds:
            learned._changes.found = lambda: None
        kind = learned.kind(Traits(100, 4096))
        none = np.zeros(0, dtype=np.int64)
        learned.lengths(none, none)
        for length in before:
            learned.ended(kind, length, cut_off=False)
            learned.lengths(none, none)
        present = np.array(now)
        curves.append(learned._learn(np.full(len(present), kind), present))
    with_test, without = curves
    with_test.careful.check(2)
    assert (with_test.careful.survival >= without.careful.survival).all()
    assert np.array_equal(with_test.typical.survival, without.typical.survival)


def test_what_fades_is_no_evidence() -> None:
    """When many others have ended, what was before a change is not known any more."""
    served = short_then(np.full(16, 2000))
    for _ in range(20):
        served.step()
    changes = served.learned._changes
    changes.weigh(*asked(served))
    assert changes.found().probability > 0.9
    for _ in range(6000):
        for moment in changes._moments:
            moment.weight *= FADES
    changes.weigh(*asked(served))
    assert changes.found().probability < 2 * CHANGE


def asked(served):
    """What the test is asked now."""
    changes = served.learned._changes
    under_way = np.bincount(cell_of(served._came), minlength=len(GRID)).astype(float)
    came = changes._over + family().log_likelihood(np.zeros(len(GRID)), under_way)
    return came, family().allowed(float("nan")), under_way


def test_moments_lie_further_apart_the_older_they_are() -> None:
    changes = LengthChanges(1, CHANGE)
    nothing = np.zeros(len(family().log_median))
    for begun in range(3000):
        under_way = np.zeros(len(GRID))
        under_way[0] = begun
        for _ in range(2):
            changes.look(nothing, nothing, np.ones(len(GRID)), under_way)
    age = 3000 - np.array([moment.begun for moment in changes._moments])
    assert len(age) == MOMENTS
    assert age[-1] == 1
    assert age[0] == 3000
    assert (age[:-1] <= 4 * age[1:]).all()


def test_a_change_is_known_until_the_curve_has_followed() -> None:
    """However many looks there are: a moment is where answers begin."""
    served = short_then(np.full(16, 2000))
    while served._came[0] < 100:
        served.step()
    for _ in range(300):
        served.look()
        assert served.mean()[1] > 600
