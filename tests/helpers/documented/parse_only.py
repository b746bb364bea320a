"""Runs scripts as far as their command line: reads [[script, words], ...], says what is refused.

A process of its own for all of them: each imports much of the package, and some share the names
of modules beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import runpy
import sys
from pathlib import Path
from typing import Any


class Parsed(BaseException):
    """The script has taken its command line."""


def tried(script: str, words: list[str]) -> str | None:
    """Why the script refuses these words; None: it takes them."""
    parse = argparse.ArgumentParser.parse_args

    def parse_only(self: argparse.ArgumentParser, *given: Any, **named: Any) -> Any:
        parse(self, *given, **named)
        raise Parsed

    before, path, known = sys.argv, [*sys.path], set(sys.modules)
    sys.argv, said = [script, *words], io.StringIO()
    sys.path.insert(0, str(Path(script).parent))
    argparse.ArgumentParser.parse_args = parse_only  # type: ignore[method-assign,assignment]
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            runpy.run_path(script, run_name="__main__")
    except Parsed:
        return None
    except SystemExit:
        return said.getvalue().strip()
    finally:
        argparse.ArgumentParser.parse_args = parse  # type: ignore[method-assign]
        sys.argv, sys.path = before, path
        for name in set(sys.modules) - known:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if Path(file).parent == Path(script).parent.resolve():
                del sys.modules[name]
    return "it began to work without reading its command line"


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    found = [tried(script, words) for script, words in asked]
    json.dump(found, sys.stdout)
