"""The solver's inner loops: as they are, or compiled by numba, which SGLang brings with it.

Compiled they are some hundred times faster, which a server needs at every plan. Compiling takes 13
seconds of CPU time once on each machine; then numba has it in a cache beside the sources, and
importing numba and loading takes 0.6 s. `tokenflow plan` does not compile: it takes up to 9 s of
CPU time (12 streams), 33 s where numba compiles first and 2.6 s with its cache, measured together.
"""

from __future__ import annotations

import hashlib
import logging
import types
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenflow_sgl.placement import branch_and_bound, kernels, local_search, lp_bound

logger = logging.getLogger(__name__)

_MODULES = (kernels, lp_bound, local_search, branch_and_bound)
_NAMES = {module.__name__ for module in _MODULES}


class Kernels:
    """The functions of the kernels' modules that the solver calls.

    Attributes:
        stall, bound, rounded, improve, branch: The functions of these names.
        compiled: Whether numba compiled them.
    """

    def __init__(self, functions: dict[str, Any], *, compiled: bool) -> None:
        self.stall: Callable[..., float] = functions["stall"]
        self.bound: Callable[..., float] = functions["bound"]
        self.rounded: Callable[..., None] = functions["rounded"]
        self.improve: Callable[..., Any] = functions["improve"]
        self.branch: Callable[..., tuple[float, int]] = functions["branch"]
        self.compiled = compiled


@lru_cache(maxsize=2)
def kernels_of(*, compiled: bool) -> Kernels:
    """The functions as they are, or compiled at their first call.

    Raises:
        ModuleNotFoundError: They are to be compiled, and numba is not installed.
    """
    namespace: dict[str, Any] = {}
    for module in _MODULES:
        namespace.update(vars(module))
    if not compiled:
        return Kernels(namespace, compiled=False)
    # Its cache notices a change of a function's file, not of the files of what the function calls.
    sources = b"".join(Path(str(module.__file__)).read_bytes() for module in _MODULES)
    cached = True
    version = hashlib.sha256(sources).hexdigest()[:16]
    # numba resolves the names that a function calls in that function's globals. So each gets a copy
    # of all of them in which the functions are compiled ones: the modules stay as they are.
    for name, function in list(namespace.items()):
        if isinstance(function, types.FunctionType) and function.__module__ in _NAMES:
            copy = types.FunctionType(function.__code__, namespace, name)
            copy.__module__ = function.__module__
            copy.__qualname__ = f"{name}.{version}"
            namespace[name] = _compiled(copy)
            cached = cached and namespace[name]._cache.cache_path is not None
    if not cached:
        logger.warning(
            "numba compiles the placement solver at every start: it has no folder for its cache; "
            "NUMBA_CACHE_DIR names one"
        )
    return Kernels(namespace, compiled=True)


def _compiled(function: Callable[..., Any]) -> Any:
    """The function for numba to compile, in its cache where there is a folder to write it to."""
    from numba import njit

    try:
        return njit(cache=True)(function)
    except RuntimeError as error:
        # Neither the folder of the sources, nor the user's cache, nor NUMBA_CACHE_DIR is writable:
        # a container with a read-only file system, or a user without a home.
        if "cannot cache function" not in str(error):
            raise
        return njit(function)
