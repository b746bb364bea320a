"""Words among the flags of a test's server that stand for its tuning file or its environment.

Flags of a test are put together from several places, a server has one tuning file: the words of all
of them are gathered into it where the server is started.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenflow_sgl.engine.config import tuning_tables
from tokenflow_sgl.policy.tuning_file import write_tuning

_TUNING, _VARIABLE = "tuning:", "variable:"
CHECK_RANKS = f"{_VARIABLE}TOKENFLOW_CHECK_RANKS=1"
"""Each rank of the server compares what it does with the leader."""


def tuned(**values: Any) -> tuple[str, ...]:
    """Words for these parameters of a tuning file."""
    return tuple(_TUNING + json.dumps(pair) for pair in values.items())


def spelled_out(flags: Sequence[str], folder: Path) -> tuple[list[str], dict[str, str]]:
    """Flags and variables that words and flags stand for.

    folder: A tuning file is written there, if there are words for one.
    """
    words = [flag for flag in flags if flag.startswith(_TUNING)]
    values = dict(json.loads(word.removeprefix(_TUNING)) for word in words)
    variables = [flag for flag in flags if flag.startswith(_VARIABLE)]
    plain = [flag for flag in flags if not flag.startswith((_TUNING, _VARIABLE))]
    env = dict(each.removeprefix(_VARIABLE).split("=") for each in variables)
    if not values:
        return plain, env
    tables = {
        table: {name: values.pop(name) for name in known if name in values}
        for table, known in tuning_tables().items()
    }
    assert not values, values
    path = folder / "tuning.toml"
    path.write_text(write_tuning(tables))
    return [*plain, "--tokenflow-tuning", str(path)], env
