"""Who asks: the key of a request, and what of it reaches the scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tokenflow_sgl.engine.config import TENANT_ATTRIBUTE, TokenFlowConfig
from tokenflow_sgl.engine.frontend.validate import check_rates
from tokenflow_sgl.engine.tenants import asks, hand_on, key_of, take_tenant
from tokenflow_sgl.engine.terms import TENANT_KEY, RateError, class_of
from tokenflow_sgl.policy import ConfigError
from tokenflow_sgl.qos.classes import SHIPPED_CLASSES


@pytest.mark.parametrize(
    ("by", "headers", "body", "key"),
    [
        ("api-key", {"authorization": "Bearer  sk-1 "}, None, "sk-1"),
        ("api-key", {"authorization": "Basic abc", "x-api-key": "sk-2"}, None, "sk-2"),
        ("api-key", {}, {"user": "me"}, ""),
        ("user", {}, {"user": "me"}, "me"),
        ("user", {}, {"user": 7}, ""),
        ("user", {}, None, ""),
        ("header:x-team", {"x-team": "red"}, None, "red"),
        ("header:x-team", {}, None, ""),
    ],
)
def test_the_key_is_where_the_operator_says(by, headers, body, key) -> None:
    assert key_of(by, headers, body) == key


@pytest.mark.parametrize("wrong", ["header:", "header:a b", "ip", "API-KEY"])
def test_another_place_is_refused(wrong) -> None:
    with pytest.raises(ConfigError, match=r"tenant_by is .*; allowed is off, api-key"):
        TokenFlowConfig(tenant_by=wrong)
    assert TokenFlowConfig(tenant_by="header:X-Team").tenant_by == "header:x-team"


@pytest.fixture
def config(tmp_path: Any) -> TokenFlowConfig:
    path = tmp_path / "classes.toml"
    path.write_text("[tenants.gold]\nweight = 2\n")
    return TokenFlowConfig(tenant_by="header:x-team", classes=str(path))


def told(config: TokenFlowConfig, key: str, secret: str = "s") -> str:
    """What the scheduler is told of a request with this key."""
    asks(config, SimpleNamespace(**{TENANT_ATTRIBUTE: secret}), {"x-team": key}, None)
    obj = SimpleNamespace(stream=True, sampling_params={"custom_params": {"tokenflow_rate": 5}})
    hand_on(obj)
    custom = obj.sampling_params["custom_params"]
    assert class_of(custom, SHIPPED_CLASSES).rate == 5.0
    req: Any = SimpleNamespace(sampling_params=SimpleNamespace(custom_params=custom))
    tenant = take_tenant(req)
    assert custom == {"tokenflow_rate": 5}
    return tenant


def test_only_keys_that_are_named_leave_as_they_are(config) -> None:
    assert told(config, "gold") == "gold"
    hashed = told(config, "sk-secret")
    assert hashed.startswith("hash:")
    assert "sk-secret" not in hashed
    assert told(config, "sk-secret") == hashed
    assert told(config, "sk-other") != hashed != told(config, "sk-secret", secret="t")
    # No key of a client is mistaken for a name.
    assert told(config, "name:gold") != "gold" != told(config, hashed)


def test_a_list_of_sampling_parameters_is_told_each(config) -> None:
    asks(config, SimpleNamespace(**{TENANT_ATTRIBUTE: "s"}), {"x-team": "gold"}, None)
    obj = SimpleNamespace(stream=False, sampling_params=[{}, {"custom_params": None}])
    hand_on(obj)
    assert [each["custom_params"] for each in obj.sampling_params] == [
        {TENANT_KEY: "name:gold"}
    ] * 2
    plain = SimpleNamespace(stream=False, sampling_params=None)
    hand_on(plain)
    assert plain.sampling_params == {"custom_params": {TENANT_KEY: "name:gold"}}


def test_a_client_may_not_say_who_it_is(config) -> None:
    forged = SimpleNamespace(sampling_params={"custom_params": {TENANT_KEY: "name:gold"}})
    with pytest.raises(RateError, match="tokenflow_tenant is 'name:gold'; it must be left out"):
        check_rates(forged, config)
