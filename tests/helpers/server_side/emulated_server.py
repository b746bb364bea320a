"""Becomes what `tokenflow_sgl_emulator.serve` becomes, without a new interpreter.

A fork that has SGLang imported would lose it where the launcher replaces its process.
"""

from __future__ import annotations

import os
import runpy
import sys

from tokenflow_sgl_emulator import serve

if "TOKENFLOW_TEST_BREAK" in os.environ:
    import broken_server  # noqa: F401


def go_on(_executable: str, command: list[str]) -> None:
    """In place of `os.execv`, of `python -m MODULE ARGUMENT...`."""
    _, _, module, *arguments = command
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    os.execv = go_on
    serve.main()
