"""Step times of a device and model on a grid: one table for decode, one for prefill."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenflow_sgl.lab.profiles.surface import Surface

Axis = tuple[float, ...]
Values = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class DecodeTable:
    """Seconds of a decode step by batch size and mean context.

    Attributes:
        batch: Rows of the step, at least two points, strictly increasing.
        context: KV tokens that a row reads on average, at least two points, strictly increasing.
        seconds: `seconds[i][j]` at `(batch[i], context[j])`, non-decreasing along both axes.

    Raises:
        ProfileError: The grid breaks these rules.
    """

    batch: Axis
    context: Axis
    seconds: Values
    _surface: Surface = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        surface = Surface("decode", self.batch, self.context, self.seconds)
        object.__setattr__(self, "_surface", surface)

    def at(self, batch: float, context: float) -> float:
        """Seconds of a step of `batch` rows with `context` KV tokens each on average."""
        return self._surface.at(batch, context)


@dataclass(frozen=True, slots=True)
class PrefillTable:
    """Seconds of a prefill step by new tokens and mean attended keys per new token.

    Attributes:
        tokens: New tokens of the step, at least two points, strictly increasing.
        attended: Keys that a new token attends to on average: `prefix + n / 2` for one request of
            n new tokens. At least two points, strictly increasing.
        seconds: `seconds[i][j]` at `(tokens[i], attended[j])`, non-decreasing along both axes.

    Raises:
        ProfileError: The grid breaks these rules.
    """

    tokens: Axis
    attended: Axis
    seconds: Values
    _surface: Surface = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        surface = Surface("prefill", self.tokens, self.attended, self.seconds)
        object.__setattr__(self, "_surface", surface)

    def at(self, tokens: float, attended: float) -> float:
        """Seconds of a step of `tokens` new tokens that attend to `attended` keys on average."""
        return self._surface.at(tokens, attended)
