"""--strip-thinking-cache, with a model that thinks, while its streams are paused and resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

THINK_END = "</think>"
THINKING = ("--reasoning-parser", "deepseek-r1", "--strip-thinking-cache")
FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")


@pytest.fixture(scope="module")
def thinker(models: Path, reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, with one of the words that it says spelled as the end of its thinking."""
    folder = tmp_path_factory.mktemp("thinker") / "qwen3"
    shutil.copytree(models / "qwen3", folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    end = reference[0][20]
    vocabulary = content["model"]["vocab"]
    word = next(word for word, number in vocabulary.items() if number == end)
    vocabulary[THINK_END] = vocabulary.pop(word)
    kind = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    content["added_tokens"].append({"id": end, "content": THINK_END, "special": True, **kind})
    path.write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("hicache", ["auto", "off"])
def test_thinking_streams_are_paused_and_their_thoughts_are_kept_meanwhile(
    start, thinker, prompts, reference, page, hicache
) -> None:
    pools = ("--max-total-tokens", "704", "--hicache-ratio", "4")
    flags = (*FORCED, *THINKING, *pools, "--page-size", str(page), "--tokenflow-hicache", hicache)
    if hicache == "off":
        flags = (*flags, "--max-total-tokens", "4000")
    with start(*flags, model=thinker) as served:
        for _ in range(2):
            answers = served.together(
                [
                    lambda p=p: served.generate(p, stream=True, require_reasoning=True)
                    for p in prompts
                ]
            )
            assert [answer.status for answer in answers] == [200] * len(prompts)
            assert [answer.body["output_ids"] for answer in answers] == reference
        thought = [answer.body["meta_info"]["reasoning_tokens"] for answer in answers]
        assert thought[0] == reference[0].index(reference[0][20]) + 1, "it stops to think"
        assert all(thought), "the test needs a model that thinks"
        resumes = served.total("tokenflow:resumes_total")
        assert resumes >= 4 * len(prompts), "the test must disturb"
        recomputed = served.total("tokenflow:resume_recomputed_tokens_sum")
        assert recomputed <= (page + 1) * resumes, "thoughts are kept while their stream is paused"
        served.assert_clean()
