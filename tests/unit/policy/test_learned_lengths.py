"""What is learned of answers' lengths comes close to the truth, soon, and errs on the long side."""

import numpy as np
import pytest

from tokenflow_sgl.contract import Traits
from tokenflow_sgl.policy import length_family
from tokenflow_sgl.policy.learned_lengths import KINDS, LearnedLengths

NOTHING = np.zeros(0, dtype=np.int64)


def expected(learned, kind=0, generated=0, limit=4096, present=NOTHING):
    """Mean length, typical and careful, of an answer that has come so far."""
    found = learned.lengths(np.full(len(present), kind), present)
    of = np.array([kind]), np.array([generated]), np.array([limit])
    return tuple(
        generated + float(curves.left(*of)[0]) for curves in (found.typical, found.careful)
    )


def learned_from(answers, *, prompt=100, limit=4096):
    learned = LearnedLengths()
    kind = learned.kind(Traits(prompt, limit))
    for length in answers:
        learned.ended(kind, int(length), cut_off=length >= limit)
    return learned


@pytest.mark.parametrize("median", [28, 300, 2000])
@pytest.mark.parametrize(("answers", "tolerance"), [(32, 0.35), (512, 0.12)])
def test_soon_near_the_truth(median, answers, tolerance) -> None:
    rng = np.random.default_rng(median)
    drawn = np.minimum(rng.lognormal(np.log(median), 0.6, 4000), 4096).astype(int).clip(1)
    learned = learned_from(drawn[:answers])
    typical, careful = expected(learned)
    assert typical == pytest.approx(drawn.mean(), rel=tolerance)
    assert typical <= careful * 1.02
    half = drawn[drawn > median]
    assert expected(learned, generated=median)[0] == pytest.approx(half.mean(), rel=tolerance)


def test_before_any_answer_the_careful_curve_expects_long_ones() -> None:
    learned = learned_from([])
    typical, careful = expected(learned)
    assert 300 < typical < careful
    assert careful > 900
    # The scale is that of the limits: every order of magnitude below is as likely as another.
    assert expected(learned_from([], limit=32_768), limit=32_768)[1] > 2 * careful


def test_the_worst_lengths_are_those_of_the_careful_ones_once_answers_have_ended() -> None:
    def worst(learned):
        return learned.lengths(NOTHING, NOTHING).worst

    new = learned_from([])
    assert worst(new) is not None
    of = np.array([0]), np.array([0]), np.array([4096])
    assert worst(new).left(*of)[0] > 1.3 * expected(new)[1]
    assert (worst(new).survival >= new.lengths(NOTHING, NOTHING).careful.survival).all()
    rng = np.random.default_rng(7)
    assert worst(learned_from(rng.lognormal(np.log(300), 0.6, 500).astype(int).clip(1))) is None
    assert LearnedLengths(caution=0.99).lengths(NOTHING, NOTHING).worst is None


def test_those_under_way_are_evidence() -> None:
    learned = learned_from([50] * 10)
    before = expected(learned)[0]
    learned.ended(0, 50, cut_off=False)
    crowd = np.full(100, 1500)
    assert expected(learned, present=crowd)[0] > 3 * before


def test_what_was_cut_off_says_only_that_it_was_longer() -> None:
    """Forty warm-up requests of 32 tokens do not promise that the next answers end after 32."""
    learned = LearnedLengths()
    for _ in range(40):
        learned.ended(learned.kind(Traits(100, 32)), 32, cut_off=True)
    assert expected(learned, kind=learned.kind(Traits(100, 4096)))[1] > 500


def test_longer_limits_count_at_once() -> None:
    """A warm-up of short requests, and then real ones: their first pass may admit a whole burst."""
    learned = learned_from([32] * 35, limit=32)
    assert expected(learned, limit=32)[1] <= 32
    learned.kind(Traits(100, 4096))
    assert expected(learned)[1] > 900


def test_a_change_is_followed() -> None:
    rng = np.random.default_rng(0)
    learned = learned_from(rng.lognormal(np.log(60), 0.4, 1000))
    for length in rng.lognormal(np.log(1500), 0.4, 600).astype(int).tolist():
        learned.ended(1, length, cut_off=False)
    assert expected(learned, kind=1)[0] > 1000


def test_kinds_differ_where_there_is_evidence() -> None:
    learned = LearnedLengths()
    short, long = learned.kind(Traits(100, 4096)), learned.kind(Traits(9000, 4096))
    assert short != long
    for _ in range(300):
        learned.ended(short, 30, cut_off=False)
        learned.ended(long, 2000, cut_off=False)
    assert expected(learned, kind=short)[0] < 500
    assert expected(learned, kind=long)[0] > 1500
    fresh = learned.kind(Traits(100, 4096, qos_class="listening"))
    assert expected(learned, kind=fresh)[0] == pytest.approx(expected(learned)[0])


def test_kinds_are_few_whatever_clients_send() -> None:
    learned = LearnedLengths()
    kinds = [learned.kind(Traits(1, 4096, qos_class=str(number))) for number in range(3 * KINDS)]
    assert max(kinds) == KINDS
    assert kinds[-1] == 0
    assert learned.kind(Traits(1, 4096, qos_class="0")) == 1
    curves = learned.lengths(np.array(kinds), np.zeros(len(kinds), dtype=np.int64)).typical
    curves.check(KINDS + 1)


def test_kinds_of_long_ago_make_place_for_new_ones() -> None:
    learned = LearnedLengths()
    for number in range(KINDS):
        kind = learned.kind(Traits(1, 4096, qos_class=str(number)))
        for _ in range(number % 4):
            learned.ended(kind, 50, cut_off=False)
    again = LearnedLengths(evidence=learned.evidence())
    kept = again.evidence().kinds
    assert len(kept) == KINDS // 2
    assert all(int(name) % 4 >= 2 for _, name, _ in kept), "those of which most is known"
    assert again.kind(Traits(1, 4096, qos_class="new")) == KINDS // 2 + 1
    assert again.kind(Traits(1, 4096, qos_class="3")) == kept.index((False, "3", 0)) + 1


@pytest.mark.parametrize("length", [0, 1, 1 << 17, 1 << 22])
def test_no_length_is_too_odd(length) -> None:
    learned = LearnedLengths()
    learned.ended(0, length, cut_off=False)
    found = learned.lengths(np.array([0]), np.array([1 << 20]))
    found.typical.check(1)
    found.careful.check(1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("median", [200, 400])
def test_an_answer_that_ended_early_says_little_of_the_others(median, seed, monkeypatch) -> None:
    rng = np.random.default_rng(seed)
    answers = rng.lognormal(np.log(median), 0.3, 300).astype(int)
    answers[0] = median // 40
    come = int(0.6 * median)
    present = np.full(int((answers > come).sum()), come)
    truth = answers[answers > come].mean()

    def typical() -> float:
        learned = learned_from(answers[answers <= come], limit=8192)
        return expected(learned, kind=1, generated=come, limit=8192, present=present)[0]

    assert 0.7 * truth < typical() < 2.5 * truth
    # With log-normals alone the one answer makes all the others long.
    monkeypatch.setattr(length_family, "EARLY", (0.0,))
    forget_family()
    try:
        assert typical() > 3.0 * truth
    finally:
        forget_family()


def forget_family() -> None:
    length_family.family.cache_clear()
    length_family.by_mean.cache_clear()


def test_more_caution_never_expects_less() -> None:
    """Whatever clients allow: what they do not allow is no part of a mean."""
    for limit in (64, 1024, 4096, 32_768):
        found = []
        for caution in (0.5, 0.7, 0.8, 0.9, 0.95, 0.99):
            learned = LearnedLengths(caution)
            kind = np.array([learned.kind(Traits(512, limit, "default", thinking=False))])
            lengths = learned.lengths(kind, np.array([0]))
            left = lengths.careful.remaining(kind, np.array([0]), np.array([float(limit)])).left
            found.append(float(left[0]))
        assert found == sorted(found)
        assert found[-1] > 0.6 * limit
