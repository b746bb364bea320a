"""One thing of SGLang that this package holds on to: a row of the ledger."""

from __future__ import annotations

from dataclasses import dataclass

UNPROVED_VARIABLE = "TOKENFLOW_UNPROVED_SGLANG"
"""1 lets other releases start, in all processes of a server; `--tokenflow-unproved-sglang`."""


@dataclass(frozen=True, slots=True)
class Seam:
    """One thing of SGLang that this package holds on to: a row of the ledger.

    Attributes:
        target: As "module:attribute.path".
        kind: hook (through SGLang's registry), override (a method that one of ours stands for), use
            (an attribute or method of an object) or import.
        why: What breaks without it; of an import: where it is.
        parameters: Names that the callable must take.
        places: Arguments that it must take by their places.
    """

    target: str
    kind: str
    why: str
    parameters: tuple[str, ...] = ()
    places: int = 0
