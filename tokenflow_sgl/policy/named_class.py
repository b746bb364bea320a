"""What a user names as package.module:Class: a policy, or what tells how long answers get."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from tokenflow_sgl.policy.config import ConfigError


def load_class(name: str, what: str, known: Sequence[str], methods: Sequence[str]) -> Any:
    """The object that `package.module:Class` makes without arguments.

    Args:
        name: As given.
        what: The setting, for errors.
        known: Names that it could have been instead.
        methods: What the object must have.

    Raises:
        ConfigError: The name leads nowhere, or to something without these methods.
    """
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ConfigError(
            f"{what} is {name!r}; allowed is {', '.join(known)} or package.module:Class"
        )
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # the module and its class run code of their own
        raise ConfigError(f"{what} {name!r} cannot be loaded: {error}") from error
    for method in methods:
        if not callable(getattr(made, method, None)):
            raise ConfigError(f"{what} {name!r} cannot be loaded: it has no method {method}")
    return made
