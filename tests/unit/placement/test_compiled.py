"""Compiled loops where numba finds no folder for its cache."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import logging
logging.basicConfig(format="%(message)s")
from tokenflow_sgl.placement import kernels_of
kernels = kernels_of(compiled=True)
print(kernels.compiled, type(kernels.stall._cache).__name__)
"""
NOWHERE = {
    # Not even root can make a folder there; and no other place is tried.
    "NUMBA_CACHE_DIR": "/proc/self/none",
    "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
}


@pytest.mark.parametrize(("env", "cache"), [({}, "FunctionCache"), (NOWHERE, "NullCache")])
def test_they_compile_without_a_folder_for_the_cache(env, cache) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], env={**os.environ, **env}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", cache]
    assert done.stderr.count("compiles the placement solver at every start") == bool(env)
