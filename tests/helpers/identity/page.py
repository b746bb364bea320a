"""The tables of docs/compatibility.md that say what is proved, from the rows of the table.

From the root of the repository: `PYTHONPATH=tests/helpers python -m identity.page` writes them.
"""

from __future__ import annotations

from pathlib import Path

from identity.scenario import Group
from identity.table import CONTROLS, FEATURES, SCENARIOS

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"
BEGIN = "<!-- Generated: PYTHONPATH=tests/helpers python -m identity.page -->"
END = "<!-- End of what is generated. -->"
SINCE = "0.1.0"
TEST = "test_tokens_are_those_of_the_undisturbed_run"

OTHERS = {
    "`--tokenizer-worker-num` above 1": (
        "live/test_tokenizer_workers.py::test_tokens_are_those_of_one_worker"
    ),
    "no retraction by SGLang where the window pool is small": (
        "live/test_windows.py::test_a_small_pool_of_windows_is_no_reason_to_retract"
    ),
    "no retraction by SGLang where the window pool is small, with speculation": (
        "live/test_windows.py::test_a_small_pool_of_windows_is_no_reason_to_retract_drafts"
    ),
    "no retraction by SGLang where the states are few": (
        "live/test_states.py::test_few_states_are_no_reason_to_retract"
    ),
    "`--scheduler-recv-interval`": (
        "attacks/test_clock.py::test_turns_without_receiving_still_take_time"
    ),
    "`--stream-interval`": f"attacks/test_stream_interval.py::{TEST}",
    "`--strip-thinking-cache`": (
        "attacks/test_thinking_stripped.py::"
        "test_thinking_streams_are_paused_and_their_thoughts_are_kept_meanwhile"
    ),
    "`--max-queued-requests`": (
        "attacks/test_queue_limit.py::test_streams_that_the_engine_retracts_meet_a_full_queue"
    ),
    "seeded sampling above temperature 0": "live/test_features.py::test_seeded_sampling",
    "log probabilities": "live/test_features.py::test_log_probabilities",
    "stop strings": "live/test_features.py::test_stop_strings",
    (
        "structured output (JSON schemas, regular expressions, EBNF) in batches with greedy and "
        "sampled requests, overlap on and off; with EAGLE, with a reasoning parser"
    ): "live/test_structured_output.py::test_pauses_in_mixed_batches_change_no_token",
    "`n` above 1": "live/test_features.py::test_parallel_samples",
    "`--enable-lora`": "live/test_features.py::test_lora",
    "penalties": "live/test_features.py::test_penalties",
    "custom logit processors": "attacks/test_logit_processors.py::test_one_call_per_token",
    "weight updates while the engine is paused": (
        "attacks/test_engine_paused.py::test_new_weights_meet_no_kv_of_the_old_ones"
    ),
    "restoration from storage (`--tokenflow-restore`)": (
        "live/test_restoration.py::test_every_split_gives_the_same_tokens"
    ),
    "order of fetches by admission": (
        "live/test_restoration.py::test_the_link_brings_first_what_is_admitted_first"
    ),
    "restoration layer by layer (`--hicache-mem-layout layer_first` or page_first_direct)": (
        "live/test_restored_layers.py::test_every_split_gives_the_same_tokens"
    ),
    (
        "KV layer by layer (`--tokenflow-layerwise`, on the CPU; "
        "[written for NVIDIA GPUs](layerwise.md#on-nvidia-gpus), where no server has run), "
        "with SGLang's prefix cache"
    ): "live/test_layerwise_prefixes.py::test_two_turns_that_begin_alike",
    "the same with `--disable-radix-cache`": (
        "live/test_layerwise_scheduled.py::test_paused_streams_say_what_undisturbed_ones_do"
    ),
    (
        "[other plugins](#other-plugins) with hooks on the same functions, loaded before and after"
    ): "live/test_other_plugins.py::test_a_server_has_all_of_ours_and_all_of_theirs",
    "the prefill server of a disaggregated pair, with SGLang's own decode server": (
        "live/test_disaggregated_pair.py::test_a_pair_says_what_one_server_says"
    ),
}
"""What tests of their own prove: by what the page says, the test below `tests/`."""


def generated() -> str:
    """What stands between `BEGIN` and `END`."""
    lines = ["| feature | scenarios | proof | since |", "| --- | --- | --- | --- |"]
    for feature, says in FEATURES.items():
        rows = [each for each in SCENARIOS.values() if each.feature == feature]
        (group,) = {each.group for each in rows}
        names = "; ".join(each.name for each in rows)
        lines.append(f"| {says} | {names} | {_proof(group)} | {SINCE} |")
    lines += [f"| {says} | | `tests/{test}` | {SINCE} |" for says, test in OTHERS.items()]
    lines += [
        "",
        "What the comparisons notice is tested as well: with each of these broken on purpose, "
        "the scenario must show what the last column says.",
        "",
        "| broken on purpose | scenario | what it must show |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| {name}: {control.says} | {control.scenario} | {control.shows.value} |"
        for name, control in CONTROLS.items()
    ]
    return "\n".join(lines)


def _proof(group: Group) -> str:
    return f"`tests/live/{group}.py::{TEST}`"


def page(old: str) -> str:
    """The page with what is generated in its place."""
    before, _, rest = old.partition(f"{BEGIN}\n")
    _, _, after = rest.partition(f"{END}\n")
    return f"{before}{BEGIN}\n\n{generated()}\n\n{END}\n{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
