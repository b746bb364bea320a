"""What tells how long answers get, by name: one registry for the live engine and the simulator."""

from __future__ import annotations

import logging

from tokenflow_sgl.contract import IntArray, LengthPredictor, Lengths, Traits
from tokenflow_sgl.contract.lengths import CERTAIN
from tokenflow_sgl.policy.learned_lengths import CAUTION, Evidence, LearnedLengths
from tokenflow_sgl.policy.named_class import load_class

logger = logging.getLogger(__name__)

PREDICTORS = ("learned", "limit")
"""Names that `make_predictor` knows, beside package.module:Class."""
MOST_KINDS = 4096
"""Kinds that a predictor of a user's may tell apart; each has a curve in every pass."""


class LimitLengths:
    """Takes each limit for the answer's length: right where clients know what they will get."""

    def kind(self, traits: Traits) -> int:
        """The only kind of answers that there is."""
        return 0

    def ended(self, kind: int, length: int, *, cut_off: bool) -> None:
        """Told that an answer has ended, of which nothing is learned."""

    def lengths(self, kind: IntArray, generated: IntArray) -> Lengths:
        """Limits are lengths, of all kinds that a predictor before this one has named."""
        kinds = int(kind.max(initial=0)) + 1
        return CERTAIN if kinds == 1 else CERTAIN.repeated(kinds)


class GuardedLengths:
    """A predictor of the user's, until it fails; from then on limits are taken for lengths.

    Not the learned ones: they would have missed all answers so far.
    """

    def __init__(self, name: str, predictor: LengthPredictor) -> None:
        self._name = name
        self._predictor: LengthPredictor = predictor

    def kind(self, traits: Traits) -> int:
        """The kind that a user's predictor gives answers like this."""
        try:
            kind = int(self._predictor.kind(traits))
            if not 0 <= kind < MOST_KINDS:
                raise ValueError(f"kind is {kind}; allowed is 0 to {MOST_KINDS - 1}")
            return kind
        except Exception:
            self._give_up()
            return 0

    def ended(self, kind: int, length: int, *, cut_off: bool) -> None:
        """Tell a user's predictor that an answer has ended."""
        try:
            self._predictor.ended(kind, length, cut_off=cut_off)
        except Exception:
            self._give_up()

    def lengths(self, kind: IntArray, generated: IntArray) -> Lengths:
        """Lengths by a user's predictor, if it has a curve for every kind that it named."""
        try:
            found = self._predictor.lengths(kind, generated)
            for curves in (found.typical, found.careful):
                curves.check(int(kind.max(initial=0)) + 1)
        except Exception:
            self._give_up()
            return self._predictor.lengths(kind, generated)
        return found

    def _give_up(self) -> None:
        logger.exception("tokenflow: %s failed; limits are taken for lengths", self._name)
        self._predictor = LimitLengths()


def make_predictor(
    name: str, caution: float = CAUTION, evidence: Evidence | None = None
) -> LengthPredictor:
    """The predictor of a name.

    Args:
        name: One of `PREDICTORS`, or package.module:Class; the class is called without arguments.
        caution: Of `learned`, see `LearnedLengths`.
        evidence: The same.

    Raises:
        ConfigError: The name leads nowhere, or to something that does not predict.
    """
    if name == "learned":
        return LearnedLengths(caution, evidence)
    if name == "limit":
        return LimitLengths()
    predictor = load_class(name, "lengths", PREDICTORS, ("kind", "ended", "lengths"))
    return GuardedLengths(name, predictor)
