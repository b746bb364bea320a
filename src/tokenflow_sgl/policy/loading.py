"""A policy of the user's own, by the name of its class."""

from __future__ import annotations

import importlib

from tokenflow_sgl.policy.config import ConfigError
from tokenflow_sgl.policy.decision import Policy


def load_class(name: str) -> Policy:
    """The policy that `package.module:Class` makes without arguments.

    Raises:
        ConfigError: The name leads nowhere.
    """
    module, _, attribute = name.partition(":")
    try:
        policy: Policy = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"policy {name!r} cannot be loaded: {error}") from error
    return policy
