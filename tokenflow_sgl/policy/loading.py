"""A policy of the user's own, by the name of its class."""

from __future__ import annotations

import importlib

from tokenflow_sgl.policy.config import ConfigError
from tokenflow_sgl.policy.decision import Policy


def load_class(name: str) -> Policy:
    """The policy that `package.module:Class` makes without arguments.

    Raises:
        ConfigError: The name leads nowhere, or to something that does not decide.
    """
    module, _, attribute = name.partition(":")
    try:
        policy: Policy = getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # the module and its class run code of their own
        raise ConfigError(f"policy {name!r} cannot be loaded: {error}") from error
    if not callable(getattr(policy, "decide", None)):
        raise ConfigError(f"policy {name!r} cannot be loaded: it has no method decide")
    return policy
