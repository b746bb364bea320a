"""The door of a process that serves HTTP: who is let in, and what never fails a request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tokenflow_sgl.engine.config import TokenFlowConfig
from tokenflow_sgl.engine.frontend.front_door import (
    FrontDoor,
    FullTenantError,
    TooLongError,
    prompts_of,
    shortest,
)
from tokenflow_sgl.engine.terms import RateError
from tokenflow_sgl.policy import WorkingSetConfig

WAITS = [[3.0, 3.25, 3.5, 4.0, 5.0, 6.0, 7.0], [6.0, 6.25, 6.5, 7.0, 8.0, 9.0, 10.0]]
BUSY = [[0.0, 0.0, 1.0], [100.0, 200.0], *WAITS]
"""What a load says of the wait: how old it is, who came since, prompts, and a row for each."""


def load(outlook: Any = BUSY, timestamp: float = 1.0) -> Any:
    return SimpleNamespace(timestamp=timestamp, tokenflow_outlook=outlook)


def request(custom: Any = None, tokens: int = 100, n: Any = 1, **more: Any) -> Any:
    params = {"n": n} if custom is None else {"custom_params": custom}
    return SimpleNamespace(
        **{"sampling_params": params, "input_ids": [1] * tokens, "rid": None, **more}
    )


def full_for(*tenants: str, **more: Any) -> Any:
    return SimpleNamespace(
        timestamp=1.0, tokenflow_outlook=None, tokenflow_full=list(tenants), **more
    )


def door(loads: Any = None, *, most: float = 0.0, without: str | None = None) -> FrontDoor:
    config = TokenFlowConfig(working_set=WorkingSetConfig(max_wait=most))
    return FrontDoor(config, lambda: [load()] if loads is None else loads, None, without)


def test_who_would_wait_too_long_is_told_for_how_long() -> None:
    with pytest.raises(TooLongError, match=r"may take 3\.0 s, longer than the 2 s") as caught:
        door(most=2.0).pass_on(request())
    assert caught.value.after == 1
    assert str(caught.value).endswith("Try again in 1 s.")


def test_when_to_come_again_goes_by_what_is_likely() -> None:
    likely = load([[0.0, 0.0, 0.25], [100.0], [20.0] * len(WAITS[0])])
    with pytest.raises(TooLongError, match=r"may take 20\.0 s, longer than the 2 s") as caught:
        door([likely], most=2.0).pass_on(request())
    assert caught.value.after == 3


@pytest.mark.parametrize(("custom", "passes"), [(5, True), (2, False), (0, True)])
def test_a_request_says_for_itself(custom, passes) -> None:
    asked = request({"tokenflow_max_wait": custom})
    for most in (0.0, 1.0, 600.0):
        if passes:
            door(most=most).pass_on(asked)
        else:
            with pytest.raises(TooLongError):
                door(most=most).pass_on(asked)


def test_a_longer_prompt_waits_longer() -> None:
    door(most=5.0).pass_on(request(tokens=100))
    with pytest.raises(TooLongError):
        door(most=5.0).pass_on(request(tokens=200))


def test_those_that_pass_make_the_next_ones_wait_until_a_new_load_knows_of_them() -> None:
    loads = [load()]
    one = door(loads, most=3.6)
    for _ in range(3):
        one.pass_on(request())  # 3.0, 3.25 and 3.5 s
    with pytest.raises(TooLongError):
        one.pass_on(request())
    loads[0] = load(timestamp=2.0)
    one.pass_on(request())


def test_what_a_scheduler_knows_no_more_refuses_none() -> None:
    loads = [load()]
    one = door(loads, most=2.0)
    with pytest.raises(TooLongError):
        one.pass_on(request())
    loads[0] = load(None, timestamp=2.0)
    one.pass_on(request())


def test_those_that_may_wait_count_too() -> None:
    one = door(most=3.6)
    one.pass_on(request({"tokenflow_max_wait": 0}, text=None))
    one.pass_on(request())
    for _ in range(4):
        one.pass_on(request({"tokenflow_max_wait": 0}))
    with pytest.raises(TooLongError):
        one.pass_on(request())


def test_several_prompts_at_once_are_let_in_together_or_not() -> None:
    several = request(input_ids=[[1] * 100] * 4)
    with pytest.raises(TooLongError):
        door(most=3.6).pass_on(several)
    door(most=4.0).pass_on(several)


@pytest.mark.parametrize("loads", [[], [load(None)], [object()], [load([[1.0, 2.0, 3.0]])], None])
def test_what_cannot_be_read_refuses_none(loads) -> None:
    def failing() -> list[Any]:
        if loads is None:
            raise OSError
        return loads

    config = TokenFlowConfig(working_set=WorkingSetConfig(max_wait=0.001))
    one = FrontDoor(config, failing)
    for _ in range(3):
        one.pass_on(request())


def test_replicas_offer_the_shortest_wait() -> None:
    shorter = [[1.0, 4.0, 1.0], [100.0], [1.0, 1.375, 1.75, 2.5, 3.0, 4.0, 5.0]]
    found, ahead = shortest([BUSY, shorter])
    assert ahead == 4.0
    assert found.expected(0.0, 100, ahead) == 1.5, "a second of it has passed"
    one = door([load(), load(shorter)], most=1.6)
    one.pass_on(request())
    one.pass_on(request())  # half of it came to the other one
    with pytest.raises(TooLongError):
        for _ in range(10):
            one.pass_on(request())


def test_where_none_can_be_refused_the_key_is() -> None:
    one = door(without="--disaggregation-mode decode")
    one.pass_on(request())
    with pytest.raises(RateError, match="it must be 0 with --disaggregation-mode decode"):
        one.pass_on(request({"tokenflow_max_wait": 2}))


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({"input_ids": [1, 2, 3]}, [3]),
        ({"input_ids": [[1], [1, 2]]}, [1, 2]),
        ({"input_ids": None, "text": "x" * 40}, [10]),
        ({"input_ids": None, "text": ["x" * 40, "y" * 4]}, [10, 1]),
        ({"input_ids": None, "text": None}, [None]),
        ({"input_ids": [], "text": []}, [None]),
        ({"input_ids": None, "text": [7]}, [None]),
    ],
)
def test_prompts_are_counted_as_they_come(more, found) -> None:
    assert prompts_of(SimpleNamespace(**more)) == found


def test_a_tenant_that_is_full_everywhere_is_refused(tmp_path) -> None:
    classes = tmp_path / "classes.toml"
    classes.write_text("[tenants.capped]\nstreams = 2\n[tenants.free]\nweight = 2\n")
    config = TokenFlowConfig(classes=str(classes))
    loads = [full_for("capped", "free"), full_for("capped")]
    counted: list[str] = []
    one = FrontDoor(config, lambda: loads, counted.append)
    with pytest.raises(FullTenantError, match="2 requests in this server") as caught:
        one.pass_on(request(), "capped")
    assert caught.value.after == 1
    assert counted == ["default"]
    for tenant in ("free", "hash:0123", None):
        one.pass_on(request(), tenant)
        one.pass_on(request(n=9), tenant)
    loads[1] = full_for()
    loads[1].timestamp = 2.0
    one.pass_on(request(), "capped")


def test_what_no_tenant_may_ask_at_once_is_no_matter_of_waiting(tmp_path) -> None:
    classes = tmp_path / "classes.toml"
    classes.write_text("[tenants.capped]\nstreams = 2\n")
    one = FrontDoor(TokenFlowConfig(classes=str(classes)), list)
    for more, answers in (({"n": 3}, 3), ({"input_ids": [[1], [2]], "n": 2}, 4)):
        with pytest.raises(RateError, match=f"{answers} answers at once; your tenant may have 2"):
            one.pass_on(request(**more), "capped")
    one.pass_on(request(n=2), "capped")
    one.pass_on(request(n="2"), "capped")  # SGLang's to judge
