"""Runs scenarios and controls on real servers, and judges what they say."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from servers.client import Served
from servers.fixtures import BROKEN, Start
from servers.meeting import Pair, pair

from identity.scenario import Check, Control, Drafts, Flags, Scenario, Shows
from identity.table import CONTROLS, MODELS, RUNNING, SCENARIOS
from tokenflow_sgl.engine.sglang.version import at_least
from tokenflow_sgl.lab.observe.stream_events import events, read_log

Tokens = list[list[int]]
ROUNDS = 5
"""Of a control: on a busy machine few of the prompts meet, so that little is disturbed."""
TOKENFLOW = ("--scheduler", "tokenflow")
STRICT = "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY"
TWO_CORES = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
"""Of DeepSeek V4's ranks, each of which would take all."""


@dataclass(frozen=True)
class Said:
    """What a server answers when all prompts are asked at once.

    Attributes:
        tokens: Of each answer.
        accepted: Drafts that were right, in all answers.
        steps: Steps that verified drafts.
    """

    tokens: Tokens
    accepted: int
    steps: int

    @property
    def per_step(self) -> float:
        """Tokens of a step of drafts. A start's and a resume's first come from a prefill."""
        return 1.0 + self.accepted / self.steps


@dataclass(frozen=True)
class Running:
    """The servers of a scenario.

    Attributes:
        asked: What answers: a server, or both of a pair.
        served: The one whose streams are paused.
        log: Its decision log, where one is looked at.
    """

    asked: Served | Pair
    served: Served
    log: Path


class Arena:
    """Servers for scenarios, and what undisturbed SGLang says.

    Args:
        start: The fixture.
        folder_of: `folder_of(model)`.
        prompts, long_prompts: What is asked, of most models and of those with `Model.long`.
        once: `once(name, make)`: what `make` gives, of one process of the run.
        folder: For logs.
        known: By model, answers that other tests compare with, too.
    """

    def __init__(
        self,
        start: Start,
        folder_of: Callable[[str], Path],
        prompts: Tokens,
        long_prompts: Tokens,
        once: Callable[[str, Callable[[], Any]], Any],
        folder: Path,
        known: dict[str, Callable[[], Tokens]],
    ) -> None:
        self._start, self.folder_of, self._once, self._folder = start, folder_of, once, folder
        self._known = known
        self._prompts, self._long_prompts = prompts, long_prompts

    def prompts(self, scenario: Scenario) -> Tokens:
        return self._long_prompts if MODELS[scenario.model].long else self._prompts

    # ---- undisturbed ----------------------------------------------------------------

    def undisturbed(self, name: str) -> Tokens:
        """What stock SGLang answers with a model, one request at a time, without drafts."""
        model = MODELS[name]
        if model.like:
            return self.undisturbed(model.like)
        if name in self._known:
            return self._known[name]()
        prompts = self._long_prompts if model.long else self._prompts

        def said() -> Tokens:
            flags = (*model.flags, *model.ample)
            with self._start(*flags, model=self.folder_of(name)) as served:
                how = {"max_new_tokens": model.tokens}
                return [served.outputs([prompt], **how)[0] for prompt in prompts]

        found: Tokens = self._once(f"undisturbed-{name}", said)
        return found

    def acceptance(self, scenario: Scenario) -> float:
        """Tokens per step of drafts that stock SGLang gives, on the same kind of servers."""
        model, drafts = MODELS[scenario.model], scenario.drafts
        assert drafts is not None

        def measured() -> float:
            plain = replace(scenario, streams=(False,), priorities=False)
            flags = (*RUNNING, *model.flags, *self.options(drafts))
            given = {"model": self.folder_of(scenario.model)}
            if scenario.decode is None:
                with self._start(*flags, *model.ample, **given) as served:
                    said = self.ask(served, plain, stream=False)
            else:
                memory = {"prefill": model.ample, "decode": model.ample}
                with pair(self._start, *flags, **memory, **given) as both:
                    said = self.ask(both, plain, stream=False)
            assert said.tokens == self.undisturbed(scenario.model)
            return said.per_step

        shape = "pair" if scenario.decode is not None else "server"
        name = "-".join((scenario.model, shape, drafts.algorithm, *drafts.flags))
        found: float = self._once(name, measured)
        return found

    def options(self, drafts: Drafts | None) -> Flags:
        """SGLang's, for these drafts."""
        if drafts is None:
            return ()
        path = ("--speculative-draft-model-path", str(self.folder_of(drafts.model)))
        return (
            *("--speculative-algorithm", drafts.algorithm, *drafts.flags),
            *(path if drafts.model else ()),
        )

    # ---- disturbed ------------------------------------------------------------------

    @contextmanager
    def running(
        self, scenario: Scenario, *, env: dict[str, str] | None = None, **given: Any
    ) -> Iterator[Running]:
        """The servers of a scenario; `env` and `given`: what else the one that pauses is given."""
        _skip_refused(scenario)
        model = MODELS[scenario.model]
        env = {**scenario.env, **(env or {})}
        cores = TWO_CORES if model.long and "--tp-size" in scenario.flags else {}
        flags = (*TOKENFLOW, *model.flags, *scenario.flags, *self.options(scenario.drafts))
        own: Flags = ("--tokenflow-policy", scenario.policy) if scenario.policy else ()
        log = self._folder / scenario.name.replace(" ", "-")
        if Check.OWN_PAUSES in scenario.checks:
            own = (*own, "--tokenflow-decision-log", str(log))
        given = {"model": self.folder_of(scenario.model), "env": {**cores, **env}, **given}
        if scenario.decode is None:
            with self._start(*flags, *own, **given) as served:
                yield Running(served, served, log)
            return
        of_both = {"prefill": model.ample, "decode": (*own, *scenario.decode)}
        with pair(self._start, *flags, **of_both, first={"env": cores}, **given) as both:
            yield Running(both, both.decode, log)

    def ask(self, asked: Served | Pair, scenario: Scenario, *, stream: bool) -> Said:
        """All prompts of the scenario at once."""
        most = MODELS[scenario.model].tokens
        calls = [
            partial(
                asked.generate,
                prompt,
                stream=stream,
                max_new_tokens=most,
                **_priority(scenario, number),
            )
            for number, prompt in enumerate(self.prompts(scenario))
        ]
        client = asked.prefill if isinstance(asked, Pair) else asked
        answers = client.together(calls)
        assert [answer.status for answer in answers] == [200] * len(calls), answers
        told = [answer.body["meta_info"] for answer in answers]
        return Said(
            [answer.body["output_ids"] for answer in answers],
            sum(each.get("spec_num_correct_drafts", 0) for each in told),
            sum(each.get("spec_verify_ct", 0) for each in told),
        )

    def check(self, scenario: Scenario, running: Running | None = None) -> None:
        """Its every token is right, and its run was disturbed.

        running: Its servers, if they run already.
        """
        if running is None:
            with self.running(scenario) as own:
                self.check(scenario, own)
                own.served.assert_clean()
            return
        wanted = self.undisturbed(scenario.model)
        said = []
        for stream in scenario.streams:
            said.append(self.ask(running.asked, scenario, stream=stream))
            assert said[-1].tokens == wanted
        _judge(scenario, running, len(wanted))
        least = scenario.taken_over * len(wanted)
        assert said[-1].accepted >= least, "the test must take over states behind drafts"
        for bound, each in zip(scenario.accepted, said, strict=False):
            stock = self.acceptance(scenario)
            print(f"{each.per_step:.3f} tokens per step, {stock:.3f} undisturbed")
            assert each.per_step >= bound * stock

    # ---- broken on purpose ----------------------------------------------------------

    def check_control(self, name: str) -> None:
        """What is broken on purpose is noticed."""
        control = CONTROLS[name]
        scenario = SCENARIOS[control.scenario]
        env = {
            "TOKENFLOW_TEST_BREAK": control.broken,
            **({STRICT: "0"} if control.unchecked else {}),
        }
        with self.running(scenario, env=env, program=BROKEN) as running:
            match control.shows:
                case Shows.TOKENS | Shows.TOKENS_OR_END:
                    assert self._differs(control, scenario, running.asked), control.says
                case Shows.RECOMPUTED:
                    said = self.ask(running.asked, scenario, stream=False)
                    assert said.tokens == self.undisturbed(scenario.model), "only computed again"
                    assert not _keeps_its_bound(scenario, running.served), control.says
                case Shows.ACCEPTED:
                    # What is on the host of the first time is loaded in the second one, too.
                    twice = [self.ask(running.asked, scenario, stream=on) for on in (False, True)]
                    assert [each.tokens for each in twice] == [
                        self.undisturbed(scenario.model)
                    ] * 2, "drafts are verified"
                    least = min(each.per_step for each in twice)
                    stock = self.acceptance(scenario)
                    print(f"{least:.3f} tokens per step, {stock:.3f} undisturbed")
                    assert least < control.below * stock, control.says

    def _differs(self, control: Control, scenario: Scenario, asked: Served | Pair) -> bool:
        wanted = self.undisturbed(scenario.model)
        for _ in range(ROUNDS):
            try:
                said = self.ask(asked, scenario, stream=False).tokens
            except (OSError, http.client.HTTPException, AssertionError) as error:
                if control.shows is Shows.TOKENS_OR_END:
                    return True
                raise AssertionError(f"it is not the tokens that tell: {error!r}") from error
            if said != wanted:
                return True
        return False


def _priority(scenario: Scenario, number: int) -> dict[str, int]:
    """Each third stream states none; the others are far apart."""
    if not scenario.priorities or number % 3 == 0:
        return {}
    return {"priority": 5 if number % 3 == 1 else -1_000_000}


def _total(served: Served, name: str) -> float:
    return served.total(f"tokenflow:{name}")


def _keeps_its_bound(scenario: Scenario, served: Served) -> bool:
    """No resume computes more again than it may; on average, if no bucket ends there."""
    bound, resumes = scenario.recomputed, _total(served, "resumes_total")
    assert bound is not None
    edge = "tokenflow:resume_recomputed_tokens_bucket", (("le", f"{float(bound)}"),)
    samples = served.metrics()
    if edge in samples:
        return samples[edge] == resumes
    return _total(served, "resume_recomputed_tokens_sum") <= bound * resumes


def _judge(scenario: Scenario, running: Running, asked: int) -> None:
    """The run was disturbed as it should be. asked: prompts, each time."""
    served = running.served
    preempted, resumes = _total(served, "preemptions_total"), _total(served, "resumes_total")
    loaded, written = (
        _total(served, f"{done}_ahead_tokens_total") for done in ("loaded", "written")
    )
    recomputed = _total(served, "resume_recomputed_tokens_sum")
    print(
        f"{scenario.name}: {preempted:.0f} preemptions, {resumes:.0f} resumes, {recomputed:.0f} "
        f"tokens recomputed, {loaded:.0f} prefetched, {written:.0f} proactively written"
    )
    assert preempted >= scenario.pauses * asked, "the test must disturb"
    assert _total(served, "policy_errors_total") == 0
    assert _total(served, "lost_streams_total") == 0
    if scenario.recomputed is not None:
        assert resumes >= scenario.pauses * asked
        assert _keeps_its_bound(scenario, served)
    if scenario.prefetched is not None:
        assert (loaded > 0) == scenario.prefetched
        assert scenario.prefetched or not written
    for name, least in scenario.least.items():
        assert _total(served, name) >= least, name
    for check in scenario.checks:
        CHECKS[check](scenario, running, asked)


def _tails(scenario: Scenario, running: Running, _: int) -> None:
    """What was written before a pause leaves little for it."""
    served, bound = running.served, scenario.recomputed
    assert bound is not None
    assert _total(served, "written_ahead_tokens_total") > 0
    within = served.metrics()[
        ("tokenflow:preemption_tail_tokens_bucket", (("le", f"{float(bound)}"),))
    ]
    tails = _total(served, "preemption_tail_tokens_count")
    assert within == tails == _total(served, "preemptions_total")


def _arrivals(_: Scenario, running: Running, asked: int) -> None:
    """They are the leader's time now, not that of the last request, or none at all."""
    served = running.served
    served.wait_for("ttft_seconds_count", asked)  # it is handed on once a second
    waited = _total(served, "ttft_seconds_sum")
    assert 0.0 < waited < 60.0 * _total(served, "ttft_seconds_count")


def _own_pauses(_: Scenario, running: Running, __: int) -> None:
    paused: dict[str, set[str]] = {}
    for event in events(read_log(running.log)):
        if event.what == "paused":
            paused.setdefault(event.line["rank"], set()).add(event.rid)
    assert set(paused) == {"", ".dp1"}, "both ranks pause streams"
    assert not paused[""] & paused[".dp1"], "of their own"


def _ended(running: Running) -> float:
    """Streams that ended while they drained."""
    served = running.served
    return _total(served, "preemptions_total") - _total(served, "resumes_total")


def _all_resumed(scenario: Scenario, running: Running, asked: int) -> None:
    """With drafts a stream that drains may end: the last step gives it several tokens."""
    assert 0 <= _ended(running) <= (0 if scenario.drafts is None else 2 * asked)


def _loaded(scenario: Scenario, running: Running, _: int) -> None:
    served = running.served
    assert _total(served, "resume_recomputed_tokens_sum") == 0
    resumed = _total(served, "preemptions_total") - _ended(running)
    assert _total(served, "resume_loaded_tokens_total") >= SHORTEST * resumed


SHORTEST = 190
"""Tokens of the shortest of the long prompts."""
CHECKS: dict[Check, Callable[[Scenario, Running, int], None]] = {
    Check.TAILS: _tails,
    Check.ARRIVALS: _arrivals,
    Check.OWN_PAUSES: _own_pauses,
    Check.ALL_RESUMED: _all_resumed,
    Check.LOADED: _loaded,
}


def _skip_refused(scenario: Scenario) -> None:
    """On an older SGLang some of the table is refused at the start."""
    if at_least("0.5.23"):
        return
    if scenario.model.startswith("v4"):
        pytest.skip("this SGLang's DeepSeek V4 was not proved, and is refused")
    if "window" in scenario.model:
        pytest.skip("this SGLang's sliding windows are refused")
    if "SGLANG_RUST_SERVER" in scenario.env:
        pytest.skip("the front end in Rust of this SGLang was not tried, and is refused")
    if "--tokenizer-worker-num" in scenario.flags:
        pytest.skip("tokenizer workers of this SGLang do not serve our application")
    if scenario.drafts is not None:
        pytest.skip("drafts of this SGLang were not tried, and are refused")
