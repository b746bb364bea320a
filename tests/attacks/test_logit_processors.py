"""What a custom logit processor sees of streams that are paused and resumed; docs/scheduler.md."""

from __future__ import annotations

import json

import pytest
from servers.client import TOKENS

pytestmark = pytest.mark.engine

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")


def processor() -> str:
    """As CustomLogitProcessor.to_str makes it, of a class that the server can import.

    Pickled by name (protocol 0 is plain text); importing it here would import SGLang.
    """
    by_name = b"crecording_logits\nRecordingLogits\n."
    return json.dumps({"callable": by_name.hex()})


@pytest.mark.parametrize("overlap", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_one_call_per_token(start, prompts, reference, tmp_path, overlap) -> None:
    flags = [*FORCED, "--enable-custom-logit-processor", "--max-total-tokens", "4000"]
    if not overlap:
        flags.append("--disable-overlap-schedule")
    with start(*flags) as served:
        bodies = [
            {
                "input_ids": ids,
                "custom_logit_processor": processor(),
                "sampling_params": {
                    "temperature": 0,
                    "max_new_tokens": TOKENS,
                    "custom_params": {"record": str(tmp_path / str(number))},
                },
            }
            for number, ids in enumerate(prompts)
        ]
        answers = served.together([lambda b=b: served.post("/generate", b) for b in bodies])
        assert [answer.body["output_ids"] for answer in answers] == reference
        assert served.total("tokenflow:resumes_total") >= 4 * len(prompts)
        served.assert_clean()
    for number in range(len(prompts)):
        seen = [int(line) for line in (tmp_path / str(number)).read_text().split()]
        if overlap:
            # The token before may be in flight. SGLang may launch one step past the end.
            assert len(seen) in (TOKENS, TOKENS + 1)
            assert all(call - 1 <= length <= call for call, length in enumerate(seen[:TOKENS]))
        else:
            assert seen == list(range(TOKENS))
