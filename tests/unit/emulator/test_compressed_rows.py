"""DeepSeek V4's buffers: rows come back as they were packed, in SGLang's form."""

import warnings
from types import SimpleNamespace

import pytest
import torch

from tokenflow_sgl_emulator.compressed import compressed_host_pool, packed_rows
from tokenflow_sgl_emulator.compressed.tiny_compressed import make_tiny_compressed

PAGE, PAGES = 8, 3
ROW_BYTES = 448 + 2 * 64 + 8


def test_rows_come_back_as_far_as_their_bits_go() -> None:
    torch.manual_seed(0)
    buffer = torch.zeros(PAGES, PAGE * ROW_BYTES, dtype=torch.uint8)
    rows, places = torch.randn(4, packed_rows.WIDTH) * 3, torch.tensor([3, 17, 8, 23])
    packed_rows.store(rows, buffer, places, page_size=PAGE, type="flashmla")
    found = packed_rows.rows(buffer, places, PAGE)
    torch.testing.assert_close(found[:, 448:], rows[:, 448:].bfloat16().float(), rtol=0, atol=0)
    # Three bits of the fraction, and a scale that is a power of two.
    assert ((found - rows).abs()[:, :448] <= 0.07 * rows.abs()[:, :448] + 0.02).all()
    others = packed_rows.rows(buffer, torch.tensor([2, 4]), PAGE)
    assert not others[:, 448:].any(), "no other row is written"


def test_a_page_has_its_data_first_and_then_its_scales() -> None:
    buffer = torch.zeros(PAGES, PAGE * ROW_BYTES, dtype=torch.uint8)
    row = torch.full((1, packed_rows.WIDTH), 448.0)
    packed_rows.store(row, buffer, torch.tensor([PAGE + 1]), page_size=PAGE, type="flashmla")
    assert not buffer[0].any()
    assert not buffer[2].any()
    data, scales = buffer[1, : PAGE * 576], buffer[1, PAGE * 576 :]
    assert data[576:1152].all()
    assert not data[:576].any()
    assert scales.view(PAGE, 8)[1].tolist() == [127] * 7 + [0]


def test_drafts_that_were_not_accepted_are_forgotten() -> None:
    from tokenflow_sgl_emulator.compressed.compressed_drafts import clear_unaccepted

    state = torch.ones(2 * 8, 6)
    # Of the second row's ring the places 6, 7, 0 and 1; of these two are accepted.
    clear_unaccepted(
        state,
        torch.tensor([1]),
        torch.tensor([14]),
        torch.tensor([2]),
        ring_size=8,
        num_draft_tokens=4,
    )
    gone = [8, 9]
    assert not state[gone, :3].any()
    assert (state[gone, 3:] == float("-inf")).all()
    assert (state[[place for place in range(16) if place not in gone]] == 1.0).all()


def test_an_indexers_rows_come_back() -> None:
    torch.manual_seed(0)
    buffer = torch.zeros(PAGES, PAGE * (128 + 4), dtype=torch.uint8)
    rows, places = torch.randn(2, packed_rows.INDEX_WIDTH), torch.tensor([5, 9])
    packed_rows.store(rows, buffer, places, page_size=PAGE, type="indexer")
    found = packed_rows.index_rows(buffer, places, PAGE)
    assert ((found - rows).abs() <= 0.07 * rows.abs() + 0.02).all()


def test_other_forms_are_refused() -> None:
    row = torch.zeros(1, packed_rows.WIDTH)
    with pytest.raises(ValueError, match="layout is 'v5'; allowed on this platform is 'v4'"):
        packed_rows.store(row, row, torch.tensor([0]), page_size=8, type="flashmla", layout="v5")


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct"])
def test_pages_go_to_the_host_and_come_back(layout) -> None:
    device = [torch.arange(8, dtype=torch.uint8).view(4, 2) + 10 * layer for layer in range(3)]
    shape = {"layer_first": (3, 4, 2), "page_first": (4, 3, 2), "page_first_direct": (4, 3, 1, 2)}
    pool = SimpleNamespace(
        layout=layout,
        layer_num=3,
        kv_buffer=torch.zeros(shape[layout], dtype=torch.uint8),
        device_buffers=[each.clone() for each in device],
        _to_page_indices=lambda places: places // 4,
    )
    host, places = torch.tensor([4, 12]), torch.tensor([8, 0])
    compressed_host_pool.backup_from_device_all_layer(pool, None, host, places, "kernel")
    for each in pool.device_buffers:
        each.zero_()
    compressed_host_pool.load_to_device_per_layer(pool, None, host, places, 1, "kernel")
    assert torch.equal(pool.device_buffers[1][[2, 0]], device[1][[2, 0]])
    assert not pool.device_buffers[1][[1, 3]].any()
    assert not pool.device_buffers[0].any()
    nothing = torch.zeros(0, dtype=torch.int64)
    compressed_host_pool.backup_from_device_all_layer(pool, None, None, places, "kernel")
    compressed_host_pool.load_to_device_per_layer(pool, None, nothing, nothing, 1, "kernel")


def test_the_tiny_model_is_the_same_each_time_and_sglang_takes_it_for_v4(tmp_path) -> None:
    from transformers import PretrainedConfig

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SGLang warns on import that there is no GPU
        from sglang.srt.configs.model_config import is_deepseek_v4

    one, two = (make_tiny_compressed(tmp_path / name) for name in ("one", "two"))
    for file in ("config.json", "model.safetensors"):
        assert (one / file).read_bytes() == (two / file).read_bytes()
    assert is_deepseek_v4(PretrainedConfig.from_json_file(str(one / "config.json")))
