"""Learned lengths come out of a document as they went in; no other document is taken for one."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tokenflow_sgl.contract import Traits
from tokenflow_sgl.contract.lengths import GRID, LONGEST
from tokenflow_sgl.policy.learned_lengths import BUCKETS, KINDS, LearnedLengths
from tokenflow_sgl.policy.lengths_document import (
    LEAST,
    LengthsDocumentError,
    lengths_document,
    read_lengths,
)

TRAITS = st.builds(
    Traits,
    prompt=st.sampled_from([*BUCKETS, *(bound + 1 for bound in BUCKETS), 1]),
    limit=st.integers(0, 1 << 20),
    qos_class=st.text(max_size=8),
    thinking=st.booleans(),
)
ANSWERS = st.lists(st.tuples(TRAITS, st.integers(0, 2 * LONGEST), st.booleans()), max_size=60)


def learned_from(answers) -> LearnedLengths:
    learned = LearnedLengths()
    for traits, length, cut_off in answers:
        learned.ended(learned.kind(traits), length, cut_off=cut_off)
    return learned


def restarted(learned: LearnedLengths) -> LearnedLengths:
    return LearnedLengths(evidence=read_lengths(lengths_document(learned.evidence())))


@settings(max_examples=60, deadline=None)
@given(ANSWERS, st.lists(TRAITS, max_size=5))
def test_a_restart_forgets_nothing(answers, later) -> None:
    before = learned_from(answers)
    assume(len(before.evidence().kinds) <= KINDS // 2)  # of more, only the best known are kept
    after = restarted(before)
    assert after.evidence().kinds == before.evidence().kinds
    for name in ("ended", "cut"):
        old, new = getattr(before.evidence(), name), getattr(after.evidence(), name)
        np.testing.assert_allclose(new, np.where(old >= LEAST, old, 0.0), atol=1e-6)
    assert after.evidence().log_limit == pytest.approx(before.evidence().log_limit, nan_ok=True)
    # New requests are told apart as before, and expected to get as long.
    assert [after.kind(traits) for traits in later] == [before.kind(traits) for traits in later]
    kinds = np.arange(len(before.evidence().kinds) + 1)
    none = np.zeros(len(kinds), dtype=np.int64)
    limits = np.full(len(kinds), 4096)
    for curves in ("typical", "careful"):
        old, new = (getattr(each.lengths(kinds, none), curves) for each in (before, after))
        assert new.left(kinds, none, limits) == pytest.approx(
            old.left(kinds, none, limits), rel=2e-2
        )


def test_a_second_restart_changes_nothing_more() -> None:
    learned = learned_from([(Traits(100, 4096, "reading"), n, n > 400) for n in range(500)])
    once = restarted(learned)
    twice = restarted(once)
    assert lengths_document(once.evidence()) == lengths_document(twice.evidence())


def test_nothing_learned_is_a_document_too() -> None:
    document = lengths_document(LearnedLengths().evidence())
    assert json.loads(document)["limit"] is None
    found = read_lengths(document)
    assert math.isnan(found.log_limit)
    assert found.kinds == ()
    assert not found.ended.any()


def test_what_is_old_is_left_out() -> None:
    learned = learned_from([(Traits(100, 4096), 77, False)] * 3)
    for _ in range(5000):
        learned.ended(1, 2000, cut_off=False)
    document = json.loads(lengths_document(learned.evidence()))
    lengths = [tokens for tokens, _ in document["kinds"][0]["ended"]]
    assert lengths == [int(GRID[GRID <= 2000][-1])]


def valid() -> dict:
    learned = learned_from([(Traits(100, 4096, "reading"), 50, False)])
    return json.loads(lengths_document(learned.evidence()))


def changed(**parts) -> str:
    return json.dumps(valid() | parts)


def with_kind(**parts) -> str:
    return changed(kinds=[valid()["kinds"][0] | parts])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is not JSON"),
        ("{", "it is not JSON"),
        ("[" * 5000, "it is nested too deeply to be read"),
        ("[]", "its format is not 'tokenflow-lengths'"),
        ('{"format": "tokenflow-trace", "version": 1}', "its format is not"),
        (changed(version=2), "version is 2; allowed is 1"),
        (changed(version=None), "version is None"),
        (changed(limit=-5), "limit is -5; allowed is null or tokens"),
        (changed(limit="4096"), "limit is '4096'"),
        (changed(limit=math.inf), "limit is inf"),
        (changed(kinds={}), f"kinds is no list of at most {KINDS}"),
        (changed(kinds=[{}] * (KINDS + 1)), f"kinds is no list of at most {KINDS}"),
        (changed(kinds=[7]), "kinds has 7; allowed is an object"),
        (changed(kinds=valid()["kinds"] * 2), "kinds has one of them twice"),
        (changed(all=None), "all has no list ended"),
        (changed(all={"ended": []}), "all has no list cut_off"),
        (with_kind(thinking=1), "thinking is 1; allowed is true or false"),
        (with_kind(qos_class=None), "qos_class is None; allowed is a name"),
        (with_kind(prompt_up_to=300), "prompt_up_to is 300; allowed is 256, 1024"),
        (with_kind(prompt_up_to=True), "prompt_up_to is True"),
        (with_kind(prompt_up_to=[]), r"prompt_up_to is \[\]"),
        (with_kind(ended=[[1]]), r"ended of kinds\[0\] has \[1\]; allowed is \[tokens, answers\]"),
        (with_kind(ended=[[-1, 1]]), r"has \[-1, 1\]"),
        (with_kind(ended=[[1, -1]]), r"has \[1, -1\]"),
        (with_kind(cut_off=[[1, math.nan]]), r"cut_off of kinds\[0\] has \[1, nan\]"),
        (with_kind(cut_off=[["1", 1]]), r"has \['1', 1\]"),
        (with_kind(ended=7), r"kinds\[0\] has no list ended"),
    ],
)
def test_what_is_wrong_is_named(text, words) -> None:
    with pytest.raises(LengthsDocumentError, match=words):
        read_lengths(text)


def test_the_documents_of_these_tests_are_wrong_in_one_thing_only() -> None:
    read_lengths(changed())
    read_lengths(with_kind())
