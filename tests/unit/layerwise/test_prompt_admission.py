"""Which prompts may join streams whose KV does not fit the device with them."""

from __future__ import annotations

import random
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layerwise_body import MadeUpEngine

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder

    from tokenflow_sgl.engine.layerwise import admission_hook
    from tokenflow_sgl.engine.layerwise.layerwise_pool import LayerwisePool

from tokenflow_sgl.engine.layerwise.even_spread import EvenSpread
from tokenflow_sgl.engine.layerwise.link_clock import StepSpeeds
from tokenflow_sgl.engine.layerwise.prompt_admission import (
    JoiningPrompt,
    has_waited,
    hidden_pages,
    machine_of,
    pays,
)
from tokenflow_sgl.engine.layerwise.solved_layers import SolvedLayers
from tokenflow_sgl.placement import for_batch, kernels_of, lower_bound

LAYERS = 8
SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=12)


def test_the_solver_is_compiled_before_streams_run() -> None:
    """Its functions as they are stand for the compiled ones: each is called."""
    kernels, called = kernels_of(compiled=False), set()

    def noting(name):
        function = getattr(kernels, name)
        return lambda *args: called.add(name) or function(*args)

    names = ("bound", "rounded", "improve", "branch")
    watched = SimpleNamespace(**{name: noting(name) for name in names})
    SolvedLayers(watched).compile()
    assert called == {*names}
    SolvedLayers().compile()


def newcomer(pages: int, joined: list[int], cells: int, link: float) -> JoiningPrompt:
    """Layers compute one second each, and the link moves `link` pages of one layer meanwhile."""
    return JoiningPrompt(pages, np.array(joined), LAYERS, cells, StepSpeeds(1.0, link))


def test_a_prompt_has_waited_when_half_of_the_streams_have_ended() -> None:
    first = {1, 2, 3}
    assert not has_waited(first, {1, 2, 3, 4})
    assert not has_waited(first, {1, 2, 4})
    assert has_waited(first, {1, 4, 5, 6})


@given(SIZES, st.integers(1, 60))
def test_a_prompt_pays_that_fits(joined, pages) -> None:
    assert pays(newcomer(pages, joined, LAYERS * (sum(joined) + pages), 0.001))


@given(SIZES, st.integers(1, 60))
def test_a_prompt_pays_if_the_link_hides_it(joined, pages) -> None:
    # Half the layers of all, and room to stage them.
    cells = (LAYERS // 2 + 1) * (sum(joined) + pages)
    assert pays(newcomer(pages, joined, cells, 2.0 * (sum(joined) + pages)))


def test_a_prompt_that_the_link_does_not_hide_waits() -> None:
    """Ten streams of ten pages fill the device."""
    full = [10] * 10
    assert pays(newcomer(10, full, 800, 60.0))
    assert not pays(newcomer(10, full, 800, 12.0))
    # A short prompt among long streams costs little, and is a whole token in each step.
    assert pays(newcomer(1, [10] * 12, 800, 12.0))
    # One stream alone is slowed down by less than half.
    assert pays(newcomer(10, [150], 800, 12.0))


def test_a_prompt_waits_where_no_placement_fits() -> None:
    """Each of the streams needs a staging cell for each page."""
    assert not pays(newcomer(10, [10] * 10, 105, 1e9))


class Says:
    """A planner that answers as it is told."""

    def __init__(self, answer: bool | Exception) -> None:
        self.answer, self.asked = answer, []

    def layouts(self, streams):
        return [()] * streams.rows.size

    def carries(self, newcomer: JoiningPrompt) -> bool:
        self.asked.append(newcomer)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def executor(planner, *, measured: bool = True):
    engine = MadeUpEngine(
        layers=LAYERS, pages=40, ratio=2.0, page=4, chance=random.Random(1), planner=planner
    )
    if measured:
        engine.executor._speeds._layer, engine.executor._speeds._pages = 1.0, 12.0
    return engine.executor


def test_the_planner_says_which_prompts_may_join() -> None:
    planner = Says(False)
    assert not executor(planner).carries(np.array([3, 4]), 5)
    (asked,) = planner.asked
    assert (asked.pages, asked.joined.tolist(), asked.layers) == (5, [3, 4], LAYERS)
    assert (asked.cells, asked.speeds) == (160, StepSpeeds(1.0, 12.0))
    assert executor(Says(True)).carries(np.array([3, 4]), 5)
    held = np.array([10] * 4)
    assert executor(SolvedLayers()).carries(held, 1)
    assert not executor(SolvedLayers()).carries(held, 10)


def test_without_a_word_or_a_measurement_every_prompt_may_join() -> None:
    assert executor(EvenSpread()).carries(np.array([40]), 40)
    assert executor(Says(False), measured=False).carries(np.array([40]), 40)


def test_a_planner_that_fails_is_replaced(caplog) -> None:
    made = executor(Says(ZeroDivisionError("no")))
    assert made.carries(np.array([40]), 40)
    assert made.carries(np.array([40]), 40)
    assert [record.message for record in caplog.records] == [
        "tokenflow: the planner of layers failed; the shipped one goes on"
    ]


def request(
    prompt: int, answered: int = 0, limit: int = 8, *, whole: bool = False, aborted: bool = False
) -> SimpleNamespace:
    """whole: its answer will be as long as its limit."""
    made = SimpleNamespace(
        origin_input_ids=[7] * prompt,
        output_ids=[7] * answered,
        sampling_params=SimpleNamespace(max_new_tokens=limit, ignore_eos=whole),
        to_finish="aborted" if aborted else None,
        kv=SimpleNamespace(holds_kv=False),
        prefix_len=0,
    )
    made.rid = str(id(made))
    return made


def adder(planner, running=(), admitted=()) -> SimpleNamespace:
    pool = LayerwisePool.__new__(LayerwisePool)
    pool.page_size, pool.executor = 4, executor(planner)
    made = SimpleNamespace(
        token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: pool),
        running_batch=SimpleNamespace(reqs=list(running)),
        can_run_list=list(admitted),
        preempt_list=[],
        new_token_ratio=0.5,
        tree_cache=None,
    )
    offset = PrefillAdder._get_running_request_total_token_offset
    made._get_running_request_total_token_offset = lambda req: offset(made, req)
    return made


@pytest.fixture
def admitted(monkeypatch):
    """Those that SGLang was asked to admit."""
    monkeypatch.setattr(admission_hook, "get_tp_group", lambda: SimpleNamespace(world_size=1))
    asked = []

    def original(of, req, *args, **kwargs):
        asked.append((req, args, kwargs))
        return AddReqResult.CONTINUE

    def admit(of, req):
        found = admission_hook.admit(original, of, req, has_chunked_req=False)
        return found, [each for each, _, _ in asked]

    return admit


def test_a_prompt_that_may_not_join_waits_as_if_there_were_no_pages(admitted) -> None:
    planner, new = Says(False), request(40)
    of = adder(planner, running=[request(30, 2, limit=10)], admitted=[request(20)])
    assert admitted(of, new) == (AddReqResult.NO_TOKEN, [])
    (asked,) = planner.asked
    # 30 + 2 tokens and half of the 8 that are left; 20 + 4; 40 + 4.
    assert (asked.joined.tolist(), asked.pages) == ([9, 6], 11)
    planner.answer = True
    assert admitted(of, new) == (AddReqResult.CONTINUE, [new])


def test_an_answer_that_ends_at_its_limit_only_counts_whole(admitted) -> None:
    planner = Says(False)
    of = adder(planner, running=[request(40), request(40, limit=40, whole=True)])
    assert admitted(of, request(40)) == (AddReqResult.NO_TOKEN, [])
    assert planner.asked[0].joined.tolist() == [11, 20]


@pytest.mark.parametrize(
    ("running", "new"),
    [
        ([request(4), request(4)], request(4)),  # there is room
        ([], request(200)),
        ([request(200)], request(200)),
        ([request(200)] * 2, request(200, limit=1)),
        ([request(200)] * 2, request(200, limit=0)),
        ([request(200)] * 2, request(1, limit=4096, aborted=True)),
        ([request(200), request(200, limit=1)], request(200)),
    ],
)
def test_nothing_waits_in_vain(admitted, running, new) -> None:
    """Room, a single stream, and what decodes in no step."""
    planner = Says(False)
    assert admitted(adder(planner, running=running), new) == (AddReqResult.CONTINUE, [new])
    of = adder(planner, admitted=running)
    of.running_batch = None
    assert admitted(of, new)[0] == AddReqResult.CONTINUE
    assert planner.asked == []


def test_what_streams_were_retracted_for_does_not_wait(admitted) -> None:
    of, new = adder(Says(False), running=[request(200)] * 2), request(200)
    of.preempt_list = [request(200)]
    assert admitted(of, new) == (AddReqResult.CONTINUE, [new])


def test_a_prompt_waits_for_half_of_the_streams_at_most(admitted) -> None:
    """Others that come meanwhile do not make it longer."""
    running, new = [request(60) for _ in range(5)], request(200)
    of = adder(Says(False), running=running)
    for gone in range(4):
        of.running_batch.reqs = [*running[gone:], *(request(60) for _ in range(gone))]
        expected = AddReqResult.NO_TOKEN if gone < 3 else AddReqResult.CONTINUE
        assert admitted(of, new)[0] == expected, gone


def test_what_a_running_stream_has_is_not_counted_again(admitted) -> None:
    planner, (first, second) = Says(False), (request(30, 2, limit=10), request(20))
    of, new = adder(planner, running=[first, second]), request(40)
    owners = of.token_to_kv_pool_allocator.get_kvcache().executor.owners
    for row, each, pages in ((1, first, range(1, 9)), (2, second, [1, 2, 11, 12, 13])):
        each.kv = SimpleNamespace(holds_kv=True, req_pool_idx=row)
        owners.read(row, np.array(pages), ())
    new.prefix_len = 12
    prefix = torch.arange(4, 4 + 12)  # pages 1 to 3
    of.tree_cache = SimpleNamespace(prefix_device_indices=lambda _: prefix)
    assert admitted(of, new) == (AddReqResult.NO_TOKEN, [])
    (asked,) = planner.asked
    assert (asked.joined.tolist(), asked.pages) == ([9, 6 - 2], 11 - 3)


def test_another_pool_is_none_of_its_business(admitted) -> None:
    of = adder(Says(False), running=[request(200)] * 2)
    of.token_to_kv_pool_allocator = SimpleNamespace(get_kvcache=object)
    new = request(200)
    assert admitted(of, new) == (AddReqResult.CONTINUE, [new])


def test_every_rank_has_to_agree(admitted, monkeypatch) -> None:
    """Another rank has measured other speeds, and says no."""
    asked = []

    def all_reduce(verdict, op, group):
        asked.append((int(verdict), op, group))
        verdict.fill_(0)

    group = SimpleNamespace(world_size=2, cpu_group="the ranks' group")
    monkeypatch.setattr(admission_hook, "get_tp_group", lambda: group)
    distributed = admission_hook.torch.distributed
    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    of = adder(Says(True), running=[request(40)] * 2)
    assert admitted(of, request(40)) == (AddReqResult.NO_TOKEN, [])
    assert asked == [(1, distributed.ReduceOp.MIN, "the ranks' group")]


def shortest(pages: list[int], cells: int, link: float) -> float:
    """Seconds of a decode step of these streams, by the best placement, over computing alone."""
    sizes, speeds = np.array(pages, dtype=float), StepSpeeds(1.0, link)
    machine = machine_of(LAYERS, cells, speeds)
    return lower_bound(sizes, for_batch(sizes.size)(LAYERS), machine) / LAYERS


@given(st.integers(4, 60), st.integers(80, 400), st.floats(1.0, 400.0))
def test_streams_that_the_link_hides_take_no_longer(number, cells, link) -> None:
    carried = hidden_pages(LAYERS, cells, StepSpeeds(1.0, link))
    assert carried >= cells // LAYERS == hidden_pages(LAYERS, cells, None)
    number = min(number, carried)
    even = [carried // number] * number
    assert shortest(even, cells, link) < 1.0 + 1.0 / LAYERS, "a layer more, at most"


def test_more_streams_than_the_link_hides_take_longer() -> None:
    carried = hidden_pages(LAYERS, 800, StepSpeeds(1.0, 30.0))
    assert carried == (800 + 210) // 9
    assert hidden_pages(LAYERS, 800, StepSpeeds(1.0, 1000.0)) == 800 // 5, "half of the layers"
    assert shortest([carried // 10] * 10, 800, 30.0) < 1.0 + 1e-6
    assert shortest([carried // 10 + 2] * 10, 800, 30.0) > 1.05
