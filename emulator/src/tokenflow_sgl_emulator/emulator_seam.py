"""One row of the emulator's ledger, and reasons that several rows have."""

from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Literal

from packaging.version import Version

SINCE = "0.5.23"
"""The SGLang that all twins fit. Before, some names are others, and some twins are missing."""


@cache
def is_older() -> bool:
    """Whether the installed SGLang is older than that."""
    return Version(version("sglang")).release < Version(SINCE).release


@dataclass(frozen=True)
class Seam:
    """One place in SGLang.

    Attributes:
        target: Dotted path of the function, method or class.
        use: ``"subclass"``, ``"call"``, or how it is hooked through ``HookRegistry``.
        why: What breaks without it, and when it can go.
    """

    target: str
    use: Literal["around", "before", "replace", "subclass", "call"]
    why: str


HOST_COPIES = (
    "HiCache's host pool pins memory and copies with CUDA; goes when SRTPlatform gets a hook "
    "for host pools as it has for device pools."
)
POOL_COPIES = "The same for other pools, whose class SGLang names itself: " + HOST_COPIES
KERNEL = "A kernel; goes when SGLang asks the platform for it, as it does for some."
