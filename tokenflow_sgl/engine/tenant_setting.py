"""What tells tenants apart: the values of the setting `tenant_by`."""

from __future__ import annotations

import re

from tokenflow_sgl.policy.config import ConfigError

TENANTS_OFF, API_KEY, USER, HEADER = "off", "api-key", "user", "header:"
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""Of a header, as RFC 9110 has it (token)."""


def check_tenant_by(value: str) -> str:
    """The value as requests are looked at by it: a header's name in small letters.

    Raises:
        ConfigError: It is none.
    """
    if value in (TENANTS_OFF, API_KEY, USER):
        return value
    if value.startswith(HEADER) and _NAME.fullmatch(value.removeprefix(HEADER)):
        return value.lower()
    raise ConfigError(
        f"tenant_by is {value!r}; allowed is {TENANTS_OFF}, {API_KEY}, {USER} or {HEADER}NAME with "
        "the name of a header"
    )
