"""The scenarios, what is broken on purpose to see that they notice it, and what they prove."""

from __future__ import annotations

from dataclasses import replace

from servers.tuned import CHECK_RANKS, tuned

from identity.scenario import Check, Control, Drafts, Flags, Group, Model, Scenario, Shows

# ---- options ------------------------------------------------------------------------

LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4"}
"""Copies land as late as SGLang and we let them."""
RUST = {**LATE, "SGLANG_RUST_SERVER": "1"}
"""SGLang's front end in Rust serves HTTP."""
LATE_AND_OFTEN = {**LATE, "SGLANG_SWA_EVICTION_INTERVAL": "8"}
"""SGLang frees what has left a window in bundles of 8 tokens, not 128: more than these have."""
CHUNKS = ("--chunked-prefill-size", "32")
# Twelve streams need about 1,350 tokens: the device holds half of it, the host the rest.
HICACHE = ("--max-total-tokens", "704", "--hicache-ratio", "4")
WRITE_BACK = ("--hicache-write-policy", "write_back")
# So little that copies of what runs make room for those of what is paused.
WRITTEN_BACK = ("--max-total-tokens", "448", "--hicache-ratio", "2.2", *WRITE_BACK)
NO_HICACHE = ("--max-total-tokens", "4000", "--tokenflow-hicache", "off")
NO_OVERLAP = ("--disable-overlap-schedule",)
PAGES = ("--page-size", "16")
TWO_RANKS = ("--tp-size", "2", CHECK_RANKS)
DP = ("--enable-dp-attention", "--dp-size", "2", "--tp-size", "2")
NO_ALL_TO_ALL = ("--no-enable-tp-lm-head-all-to-all",)
"""An operator of SGLang's that the CPU does not have."""
PRIORITY = ("--enable-priority-scheduling",)
WORKERS = ("--tokenizer-worker-num", "2")
GROUPS = tuned(block_groups=True)

RUNNING = ("--max-running-requests", "16")
# 8 tokens more for each stream.
SPECULATING = ("--max-total-tokens", "960", "--hicache-ratio", "4")
LARGER = ("--max-total-tokens", "1280", "--hicache-ratio", "4")
CHAIN = (
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
    *("--speculative-num-draft-tokens", "4"),
)
TREE = (
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "4"),
    *("--speculative-num-draft-tokens", "8"),
)
NGRAM = Drafts("NGRAM", "", ("--speculative-num-draft-tokens", "4"))


def chain(algorithm: str, model: str) -> Drafts:
    return Drafts(algorithm, model, CHAIN)


def tree(algorithm: str, model: str) -> Drafts:
    return Drafts(algorithm, model, TREE)


# ---- models -------------------------------------------------------------------------

STATES = ("--max-mamba-cache-size", "60", "--mamba-track-interval", "64")
GRID = 64
"""Tokens between two states of Qwen3.5 that are kept."""
# SGLang encodes chats with a recipe that wants DeepSeek's own tokens.
COMPRESSED = Model(
    (
        *("--max-running-requests", "8", "--chunked-prefill-size", "512"),
        "--skip-tokenizer-init",
    ),
    ("--max-total-tokens", "16384", "--swa-full-tokens-ratio", "0.9"),
    tokens=120,
    long=True,
)
MODELS = {
    "qwen3": Model(),
    "qwen3-deeper": Model(),
    "qwen3-window": Model(),
    "windows": Model(),
    "deepseek": Model(),
    "deepseek-mtp": Model(like="deepseek"),
    "lfm2": Model(("--max-mamba-cache-size", "48")),
    "qwen3.5": Model(STATES),
    "qwen3.5-mtp": Model(STATES),
    "llama": Model(),
    "mtp": Model(like="llama"),
    "v4": COMPRESSED,
    "v4-nextn": COMPRESSED,
}
"""By folder: see the fixtures `models` and `drafting`, and `tokenflow_sgl_emulator.compressed`."""

# ---- what they prove ----------------------------------------------------------------

FEATURES = {
    "plain": "overlap scheduling on and off, pages of 1 and 16 tokens, HiCache on and off",
    "parts": "KV loaded in parts",
    "written back": "`--hicache-write-policy write_back`",
    "ranks": "`--tp-size` above 1",
    "moments": "streams that are wanted back at once, and paced ones (`pace` in the tuning file)",
    "interval": "`--prefill-decode-interval`",
    "direct": "copies that leave with SGLang's own (`--hicache-io-backend direct`)",
    "groups": "block groups (`block_groups` in the tuning file)",
    "dp": "`--dp-size` above 1, with `--enable-dp-attention` and without",
    "priorities": "`--enable-priority-scheduling`",
    "rust": "[SGLang's front end in Rust](#sglangs-front-end-in-rust)",
    "mla": "MLA models (DeepSeek-shaped)",
    "windows": "sliding-window models (Qwen3-shaped, two pools)",
    "states": "models with recurrent states (convolutions: LFM2; gated delta networks: Qwen3.5)",
    "compressed": (
        "DeepSeek V4 (its compressed KV, indexer, windows and states in pools of their own)"
    ),
    "speculation": "`--speculative-algorithm` NGRAM, STANDALONE, EAGLE, EAGLE3, NEXTN",
    "speculation in windows": (
        "sliding windows with speculation (EAGLE's and EAGLE3's layers for drafts attend to all "
        "tokens; NEXTN's and STANDALONE's have windows, too)"
    ),
    "speculation of states": "recurrent states (Qwen3.5) with speculation",
    "speculation of compressed": "DeepSeek V4 with EAGLE (its own layer for drafts)",
    "together": "features that people use together",
    "decode": (
        "the decode server of a disaggregated pair (priorities with "
        "`--disable-priority-preemption`)"
    ),
    "speculation of decode": "decode servers with speculation",
    "compressed decode": "decode servers: DeepSeek V4",
    "speculation of compressed decode": "decode servers: DeepSeek V4 with EAGLE",
}
"""By key: what the page on compatibility says, before the names of the scenarios."""

# ---- one server ---------------------------------------------------------------------


def _plain() -> list[Scenario]:
    rows = []
    for overlap in ("", "no overlap"):
        for memory in ("HiCache", "no HiCache"):
            for page in (1, 16):
                held = HICACHE if memory == "HiCache" else NO_HICACHE
                copied = memory == "HiCache"
                rows.append(
                    Scenario(
                        ", ".join(filter(None, (overlap, memory, f"pages of {page}"))),
                        *("plain", Group.PLAIN, "nothing copied" if copied else "nothing kept"),
                        flags=(
                            *CHUNKS,
                            *held,
                            *("--page-size", str(page)),
                            *(NO_OVERLAP if overlap else ()),
                        ),
                        env=LATE,
                        recomputed=page + 1,
                        prefetched=copied,
                        checks=(Check.TAILS,) if copied else (),
                        often=copied and not overlap,
                    )
                )
    return rows


def _parts() -> list[Scenario]:
    # So little that memory for all of a stream is often missing.
    little = (*CHUNKS, "--max-total-tokens", "448", "--hicache-ratio", "6")
    first = Scenario(
        *("in parts", "parts", Group.PLAIN, "resumed before it has landed"),
        flags=little,
        policy="forced:PreemptInChunks",
        env=LATE,
        pauses=1,
        least={"loaded_ahead_chunks_total": 1},
    )
    return [
        first,
        replace(first, name="in parts, pages of 16", flags=(*little, *PAGES)),
        replace(first, name="in parts, two ranks", flags=(*little, *TWO_RANKS)),
    ]


def _written_back() -> list[Scenario]:
    first = Scenario(
        *("written back", "written back", Group.PLAIN, "nothing copied where it is written back"),
        flags=(*CHUNKS, *WRITTEN_BACK),
        env=LATE,
        pauses=12,
        recomputed=2,
        prefetched=True,
        least={"written_ahead_tokens_total": 1},
        often=True,
    )
    flags = first.flags
    paged = replace(first, name=f"{first.name}, pages of 16", flags=(*flags, *PAGES), recomputed=17)
    # Even less: what is lost is computed again.
    tight = (*CHUNKS, "--max-total-tokens", "448", "--hicache-ratio", "0.5", *WRITE_BACK)
    lossy = replace(first, recomputed=None, pauses=8, policy="forced:PreemptInChunks", often=False)
    return [
        first,
        replace(paged, often=False),
        replace(first, name="written back, no overlap", flags=(*flags, *NO_OVERLAP), often=False),
        replace(first, name="written back, two ranks", flags=(*flags, *TWO_RANKS), often=False),
        replace(lossy, name="written back, a tiny host", flags=tight),
        replace(
            first,
            name="windows, written back",
            feature="windows",
            group=Group.MODELS,
            control="nothing copied of windows",
            model="qwen3-window",
            flags=(*CHUNKS, *WRITTEN_BACK),
            env=LATE_AND_OFTEN,
            pauses=4,
            recomputed=None,
            often=False,
        ),
        replace(
            first,
            name="deltas, written back",
            feature="states",
            group=Group.MODELS,
            control="no state copied",
            model="qwen3.5",
            flags=("--max-total-tokens", "704", "--hicache-ratio", "2", *WRITE_BACK),
            pauses=4,
            recomputed=GRID + 1,
            prefetched=None,
            least={},
            often=False,
        ),
    ]


def _more_of_one() -> list[Scenario]:
    groups = Scenario(
        *("block groups", "groups", Group.TOGETHER, "nothing copied"),
        flags=(*CHUNKS, *HICACHE, *GROUPS),
        env=LATE,
        prefetched=True,
    )
    # Six streams of each rank need about 675 tokens: the device holds half of it.
    narrow = ("--max-total-tokens", "352", "--hicache-ratio", "4", "--chunked-prefill-size", "64")
    dp = Scenario(
        *("DP attention, HiCache", "dp", Group.TOGETHER, "nothing copied by a DP rank"),
        flags=(*DP, *narrow),
        env=LATE,
        prefetched=True,
        checks=(Check.OWN_PAUSES,),
    )
    rust = Scenario(
        *(
            "front end in Rust",
            "rust",
            Group.TOGETHER,
            "nothing copied behind the front end in Rust",
        ),
        flags=(*CHUNKS, *HICACHE),
        env=RUST,
        recomputed=2,
        prefetched=True,
        often=True,
    )
    replicas = ("--dp-size", "2")
    priorities = Scenario(
        *("priorities", "priorities", Group.TOGETHER, "nothing copied"),
        flags=(*CHUNKS, *HICACHE, *PRIORITY),
        priorities=True,
    )
    return [
        Scenario(
            *("two ranks", "ranks", Group.PLAIN, "nothing copied"),
            flags=(*CHUNKS, *HICACHE, "--tp-size", "2"),
            checks=(Check.ARRIVALS,),
        ),
        Scenario(
            *("wanted back at once", "moments", Group.PLAIN, "released before it has drained"),
            flags=("--max-total-tokens", "4000"),
            policy="forced:PreemptAndResume",
            often=True,
        ),
        Scenario(
            *("paced", "moments", Group.PLAIN, "released before it has drained"),
            # Readers so slow that even a busy machine gets well before them.
            flags=(
                *tuned(pace=True),
                "--tokenflow-default-rate",
                "5",
                "--max-total-tokens",
                "8000",
            ),
            policy="",
            streams=(True,),
            pauses=1,
            checks=(Check.ALL_RESUMED,),
            often=True,
        ),
        Scenario(
            *("passes for decoding", "interval", Group.TOGETHER, "nothing copied"),
            flags=(*HICACHE, "--prefill-decode-interval", "6"),
            pauses=10,  # 257 in all; 65 where the policy decides only if SGLang may begin a prefill
        ),
        Scenario(
            *("direct copies", "direct", Group.TOGETHER, "nothing copied"),
            flags=(
                *CHUNKS,
                *HICACHE,
                *("--hicache-io-backend", "direct", "--hicache-mem-layout", "layer_first"),
            ),
            env=LATE,
            least={"written_ahead_tokens_total": 1},
        ),
        groups,
        rust,
        replace(
            rust,
            name="front end in Rust, two ranks, stream interval",
            flags=(*CHUNKS, *HICACHE, *TWO_RANKS, *WORKERS, "--stream-interval", "4"),
            recomputed=None,
            often=False,
        ),
        replace(groups, name="block groups, pages of 16", flags=(*groups.flags, *PAGES)),
        replace(groups, name="block groups, two ranks", flags=(*groups.flags, *TWO_RANKS)),
        dp,
        replace(dp, name="DP attention, no HiCache", flags=(*DP, *NO_HICACHE), prefetched=False),
        replace(
            dp,
            name="DP attention, written back",
            flags=(*dp.flags, "--hicache-ratio", "1.5", *WRITE_BACK),
        ),
        replace(dp, name="replicas, HiCache", flags=(*replicas, *narrow)),
        replace(dp, name="replicas, no HiCache", flags=(*replicas, *NO_HICACHE), prefetched=False),
        priorities,
        replace(
            priorities,
            name="priorities, the shipped policy",
            flags=(*priorities.flags, "--tokenflow-default-rate", "5"),
            policy="",
            pauses=0,
        ),
    ]


def _models() -> list[Scenario]:
    mla = Scenario(
        *("MLA, pages of 16", "mla", Group.MODELS, "nothing copied of MLA"),
        model="deepseek",
        flags=(*CHUNKS, *HICACHE, *PAGES),
        env=LATE,
        recomputed=17,
        prefetched=True,
        often=True,
    )
    windows = Scenario(
        *("windows", "windows", Group.MODELS, "nothing copied of windows"),
        model="qwen3-window",
        flags=(*CHUNKS, *HICACHE),
        env=LATE_AND_OFTEN,
        prefetched=True,
    )
    held = ("--max-total-tokens", "704", "--hicache-ratio", "6")
    convolutions = Scenario(
        *("convolutions", "states", Group.MODELS, "no state copied"),
        model="lfm2",
        flags=held,
        env=LATE,
        recomputed=2,
    )
    deltas = replace(convolutions, name="deltas", model="qwen3.5", recomputed=GRID + 1)
    # Six streams need about 4,500 tokens, in pages of 256.
    small = (
        *("--max-total-tokens", "3072", "--hicache-ratio", "6"),
        *("--swa-full-tokens-ratio", "0.75"),
    )
    v4 = Scenario(
        *("V4", "compressed", Group.MODELS, "nothing copied of V4"),
        model="v4",
        flags=small,
        env=LATE,
    )
    drafting = replace(
        v4,
        name="V4 with EAGLE",
        feature="speculation of compressed",
        group=Group.DRAFTS,
        control="drafts of V4 not loaded",
        model="v4-nextn",
        drafts=chain("EAGLE", ""),
        accepted=(0.95, 0.95),
    )
    alike = {
        "no HiCache": ("--max-total-tokens", "16384", "--tokenflow-hicache", "off"),
        "no overlap": (*small, *NO_OVERLAP),
        "two ranks": (*small, *TWO_RANKS),
        "written back": (*small, "--hicache-ratio", "2", *WRITE_BACK),
    }
    return [
        mla,
        replace(mla, name="MLA", flags=(*CHUNKS, *HICACHE), recomputed=2, often=False),
        replace(
            mla,
            name="MLA, no HiCache",
            flags=(*CHUNKS, *NO_HICACHE),
            recomputed=2,
            prefetched=False,
            often=False,
        ),
        windows,
        replace(windows, name="windows, pages of 16", flags=(*windows.flags, *PAGES)),
        replace(
            windows, name="windows, no HiCache", flags=(*CHUNKS, *NO_HICACHE), prefetched=False
        ),
        convolutions,
        replace(convolutions, name="convolutions, no HiCache", flags=NO_HICACHE),
        deltas,
        replace(deltas, name="deltas, pages of 16", flags=(*held, *PAGES)),
        replace(deltas, name="deltas, no HiCache", flags=NO_HICACHE),
        replace(deltas, name="deltas, two ranks", flags=(*held, *TWO_RANKS)),
        v4,
        *(replace(v4, name=f"V4, {name}", flags=flags) for name, flags in alike.items()),
        replace(v4, name="V4, DP attention", flags=(*small, *DP)),
        drafting,
        *(
            replace(drafting, name=f"{drafting.name}, {name}", flags=flags)
            for name, flags in alike.items()
        ),
    ]


# ---- one server, with drafts --------------------------------------------------------

_OF_LLAMA = "drafts not loaded"
_OF_WINDOWS = "drafts in windows not loaded"
_ALGORITHMS = {
    "NGRAM": ("qwen3", NGRAM, _OF_LLAMA),
    "STANDALONE": ("qwen3", chain("STANDALONE", "qwen3"), _OF_LLAMA),
    "EAGLE": ("llama", chain("EAGLE", "eagle"), _OF_LLAMA),
    "EAGLE3": ("llama", chain("EAGLE3", "eagle3"), _OF_LLAMA),
    "NEXTN": ("mtp", chain("NEXTN", "mtp"), _OF_LLAMA),
    "STANDALONE in trees": ("qwen3", tree("STANDALONE", "qwen3"), _OF_LLAMA),
    "EAGLE in trees": ("llama", tree("EAGLE", "eagle"), _OF_LLAMA),
    "NEXTN in trees": ("mtp", tree("NEXTN", "mtp"), _OF_LLAMA),
    "windows, NGRAM": ("windows", NGRAM, _OF_WINDOWS),
    "windows, STANDALONE": ("windows", chain("STANDALONE", "windows"), _OF_WINDOWS),
    "windows, EAGLE3": ("windows", chain("EAGLE3", "windows-eagle3"), _OF_WINDOWS),
    "windows, NEXTN": ("windows", chain("NEXTN", "windows-eagle-window"), _OF_WINDOWS),
    "windows, EAGLE in trees": ("windows", tree("EAGLE", "windows-eagle"), _OF_WINDOWS),
    "windows, NEXTN in trees": ("windows", tree("NEXTN", "windows-eagle-window"), _OF_WINDOWS),
}
_OFTEN = ("NGRAM",)
_SETTINGS: dict[str, tuple[tuple[str, Flags], ...]] = {
    "STANDALONE": (("written back", ("--hicache-ratio", "1", *WRITE_BACK)),),
    "EAGLE": (
        ("pages of 16", PAGES),
        ("no overlap", NO_OVERLAP),
        ("two ranks", TWO_RANKS),
    ),
    "EAGLE in trees": (("two ranks", TWO_RANKS), ("no overlap", NO_OVERLAP)),
    "windows, EAGLE3": (
        ("pages of 16", PAGES),
        ("no overlap", NO_OVERLAP),
        ("two ranks", TWO_RANKS),
    ),
    "windows, NEXTN": (("pages of 16, no overlap", (*PAGES, *NO_OVERLAP)),),
}


def _drafts() -> list[Scenario]:
    rows = []
    for name, (model, drafts, control) in _ALGORITHMS.items():
        feature, group = "speculation", Group.DRAFTS
        if model == "windows":
            feature, group = "speculation in windows", Group.DRAFTS_IN_WINDOWS
        first = Scenario(
            *(name, feature, group, control),
            model=model,
            drafts=drafts,
            flags=(*CHUNKS, *RUNNING, *SPECULATING),
            env=LATE_AND_OFTEN,
            pauses=2,
            # The step after a resume drafts from a token or two that were computed anew.
            accepted=(0.9,),
            often=name in _OFTEN,
        )
        rows += [
            first,
            replace(
                first,
                name=f"{name}, no HiCache",
                flags=(*CHUNKS, *RUNNING, *NO_HICACHE),
                env={},
            ),
            *(
                replace(
                    first,
                    name=f"{name}, {setting}",
                    flags=(*CHUNKS, *RUNNING, *LARGER, *flags),
                    accepted=(),
                )
                for setting, flags in _SETTINGS.get(name, ())
            ),
        ]
    return rows


def _drafts_of_states() -> list[Scenario]:
    small = ("--max-total-tokens", "960", "--hicache-ratio", "6")
    first = Scenario(
        *("deltas, NEXTN", "speculation of states", Group.DRAFTS, "no state behind drafts copied"),
        model="qwen3.5-mtp",
        drafts=chain("NEXTN", "qwen3.5-mtp"),
        flags=small,
        env=LATE,
        recomputed=GRID + 4,
        taken_over=1,
    )
    return [
        first,
        replace(first, name=f"{first.name}, no overlap", flags=(*small, *NO_OVERLAP)),
        replace(
            first,
            name=f"{first.name}, no HiCache, pages of 16, two ranks",
            flags=(*NO_HICACHE, *PAGES, *TWO_RANKS),
        ),
        replace(first, name="deltas, NGRAM", drafts=NGRAM),
    ]


# ---- features together --------------------------------------------------------------


def _together() -> list[Scenario]:
    # Each rank has half of the streams. A chunk is divided by the ranks.
    dp = (*DP, "--max-total-tokens", "480", "--chunked-prefill-size", "64")
    room = ("--max-total-tokens", "960", *RUNNING)
    trees = ("--max-total-tokens", "1200", *RUNNING)  # 24 tokens for each stream
    v3, q35 = "deepseek-mtp", "qwen3.5-mtp"
    nextn = {name: chain("NEXTN", name) for name in (v3, q35, "mtp")}
    eagle3 = chain("EAGLE3", "eagle3-qwen3")
    rows: dict[str, tuple[str, Flags, Drafts | None]] = {
        "windows, priorities": ("qwen3-window", PRIORITY, None),
        "windows, tokenizer workers": ("qwen3-window", WORKERS, None),
        "MLA, tokenizer workers": ("deepseek", WORKERS, None),
        "MLA, DP attention": ("deepseek", dp, None),
        "MLA, NGRAM": ("deepseek", room, NGRAM),
        "MLA, NEXTN, tokenizer workers": (v3, (*room, *WORKERS), nextn[v3]),
        "NGRAM, priorities": ("qwen3", (*room, *PRIORITY), NGRAM),
        "NEXTN, tokenizer workers": ("mtp", (*room, *WORKERS), nextn["mtp"]),
        "deltas, priorities": ("qwen3.5", PRIORITY, None),
        "deltas, NEXTN, tokenizer workers": (q35, (*room, *WORKERS), nextn[q35]),
        "deltas, NEXTN, DP attention": (q35, (*room, *dp), nextn[q35]),
        "DP attention, priorities": ("qwen3", (*dp, *PRIORITY), None),
        "DP attention, tokenizer workers": ("qwen3", (*dp, *WORKERS), None),
        "MLA, NEXTN in trees": (v3, trees, tree("NEXTN", v3)),
        "deltas, NEXTN in trees": (q35, trees, tree("NEXTN", q35)),
        "DP attention, EAGLE3": ("qwen3-deeper", (*room, *dp), eagle3),
        "DP attention, EAGLE3 in trees": (
            "qwen3-deeper",
            (*dp, *trees),
            tree("EAGLE3", "eagle3-qwen3"),
        ),
    }
    controls = {
        "qwen3-window": "nothing copied of windows",
        **dict.fromkeys(("deepseek", v3), "nothing copied of MLA"),
        **dict.fromkeys(("qwen3.5", q35), "no state copied"),
    }
    return [
        Scenario(
            *(name, "together", Group.TOGETHER, controls.get(model, "nothing copied")),
            model=model,
            flags=(*CHUNKS, *HICACHE, *flags),
            drafts=drafts,
            env=LATE_AND_OFTEN,
            priorities=PRIORITY[0] in flags,
            pauses=2,
        )
        for name, (model, flags, drafts) in rows.items()
    ]


# ---- pairs --------------------------------------------------------------------------


def _decode() -> list[Scenario]:
    small = ("--max-total-tokens", "704")
    tensors = ("--disaggregation-decode-retraction-backup", "cpu_tensor", "--disable-radix-cache")
    priorities = (*PRIORITY, "--disable-priority-preemption")
    first = Scenario(
        *("decode server", "decode", Group.DECODE, "resumed before its copy has landed"),
        # So that a seed says what is drawn.
        flags=("--enable-deterministic-inference",),
        decode=small,
        env=LATE,
        checks=(Check.ALL_RESUMED,),
        often=True,
    )
    rows: dict[str, tuple[str, Flags, Flags, str]] = {
        "pages of 16, no overlap": ("qwen3", PAGES, (*small, *NO_OVERLAP), first.control),
        "tensors, no radix cache": ("qwen3", (), (*small, *tensors), "a token's KV not loaded"),
        "two ranks": ("qwen3", TWO_RANKS[:2], (*small, *TWO_RANKS[2:]), first.control),
        "DP attention": (
            *("qwen3", (*DP, *NO_ALL_TO_ALL), ("--max-total-tokens", "480")),
            first.control,
        ),
        "MLA, pages of 16": ("deepseek", PAGES, small, first.control),
        "windows": ("qwen3-window", (), small, first.control),
        "convolutions": ("lfm2", (), small, "a decode server's stream does not drain"),
        "deltas": ("qwen3.5", (), small, "a decode server's stream does not drain"),
        "priorities": ("qwen3", priorities, small, first.control),
        "tokenizer workers": ("qwen3", WORKERS, small, first.control),
    }
    rust = replace(first, name="decode: front end in Rust", env=RUST, often=False)
    drafts = {
        "EAGLE": ("llama", chain("EAGLE", "eagle")),
        "EAGLE in trees": ("llama", tree("EAGLE", "eagle")),
        "EAGLE3": ("llama", chain("EAGLE3", "eagle3")),
        "NEXTN": ("llama", chain("NEXTN", "mtp")),
        "windows, EAGLE3": ("windows", chain("EAGLE3", "windows-eagle3")),
        "windows, NEXTN": ("windows", chain("NEXTN", "windows-eagle-window")),
    }
    return [
        first,
        rust,
        *(
            replace(
                first,
                name=f"decode: {name}",
                model=model,
                flags=flags,
                decode=decode,
                control=control,
                often=False,
            )
            for name, (model, flags, decode, control) in rows.items()
        ),
        *(
            replace(
                first,
                name=f"decode: {name}",
                feature="speculation of decode",
                model=model,
                flags=RUNNING,
                decode=("--max-total-tokens", "960"),
                drafts=each,
                often=False,
            )
            for name, (model, each) in drafts.items()
        ),
    ]


def _compressed_decode() -> list[Scenario]:
    # Six streams need about 4,500 tokens, in pages of 256, and two pages of windows each.
    windows = ("--swa-full-tokens-ratio", "0.9")
    small = ("--max-total-tokens", "3072", "--hicache-ratio", "6", *windows)
    first = Scenario(
        *("decode: V4", "compressed decode", Group.COMPRESSED_DECODE, "pages of V4 not given back"),
        model="v4",
        decode=small,
        checks=(Check.ALL_RESUMED, Check.LOADED),
    )
    drafting = replace(
        first,
        name="decode: V4 with EAGLE",
        feature="speculation of compressed decode",
        control="drafts of V4 not kept",
        model="v4-nextn",
        drafts=chain("EAGLE", ""),
        accepted=(0.96,),  # the same prompts have the same drafts
    )
    return [
        first,
        replace(first, name="decode: V4, no overlap", decode=(*small, *NO_OVERLAP)),
        replace(
            first,
            name="decode: V4, two ranks",
            flags=TWO_RANKS[:2],
            decode=(*small, *TWO_RANKS[2:]),
        ),
        replace(first, name="decode: V4, DP attention", flags=(*DP, *NO_ALL_TO_ALL)),
        drafting,
        replace(drafting, name=f"{drafting.name}, no overlap", decode=(*small, *NO_OVERLAP)),
    ]


# ---- the table ----------------------------------------------------------------------

SCENARIOS = {
    each.name: each
    for each in (
        *_plain(),
        *_parts(),
        *_written_back(),
        *_more_of_one(),
        *_models(),
        *_drafts(),
        *_drafts_of_states(),
        *_together(),
        *_decode(),
        *_compressed_decode(),
    )
}
"""All rows, by name."""

CONTROLS = {
    "released before it has drained": Control(
        "wanted back at once",
        "no-drain",
        "a stream with a result in flight gives its memory back",
        Shows.TOKENS_OR_END,
        unchecked=True,
        often=True,
    ),
    "nothing kept": Control(
        "no HiCache, pages of 1",
        "no-keep",
        "KV of a paused stream is thrown away",
        Shows.RECOMPUTED,
        often=True,
    ),
    "nothing copied": Control(
        "HiCache, pages of 1", "no-copy", "the host believes that it has the KV", often=True
    ),
    "nothing copied behind the front end in Rust": Control(
        "front end in Rust", "no-copy", "the host believes that it has the KV"
    ),
    "nothing copied where it is written back": Control(
        "written back", "no-copy", "the host believes that it has the KV", often=True
    ),
    "resumed before it has landed": Control(
        "in parts", "no-landing", "a stream reads KV that is still being copied", often=True
    ),
    "nothing copied by a DP rank": Control(
        "DP attention, HiCache", "no-copy", "the host believes that it has the KV"
    ),
    "nothing copied of MLA": Control("MLA", "no-copy", "the host believes that it has the KV"),
    "nothing copied of windows": Control(
        "windows", "no-copy", "the host believes that it has the KV"
    ),
    "no state copied": Control(
        "convolutions", "no-state-copy", "what is kept of a state is another stream's"
    ),
    "KV beside states not copied": Control(
        "convolutions", "no-copy", "the host believes that it has the KV"
    ),
    "nothing copied of V4": Control("V4", "no-copy", "the host believes that it has the rows"),
    "drafts of V4 not loaded": Control(
        "V4 with EAGLE",
        "no-draft-load",
        "the draft layer's pages do not come back from the host",
        Shows.ACCEPTED,
        below=0.95,
    ),
    "drafts not loaded": Control(
        "STANDALONE",
        "no-draft-load",
        "the draft model's KV does not come back from the host",
        Shows.ACCEPTED,
    ),
    "drafts in windows not loaded": Control(
        "windows, STANDALONE",
        "no-draft-load",
        "the draft model's KV does not come back from the host",
        Shows.ACCEPTED,
    ),
    "no state behind drafts copied": Control(
        "deltas, NEXTN", "no-state-copy", "what is kept of a state is another stream's"
    ),
    "a decode server's stream does not drain": Control(
        "decode: convolutions",
        "no-drain",
        "what is computed in the step in flight is dropped, but the state has gone on",
    ),
    "a token's KV not loaded": Control(
        "decode: tensors, no radix cache",
        "no-first-tensor",
        "one place of a resumed stream has another stream's KV",
    ),
    "resumed before its copy has landed": Control(
        "decode: pages of 16, no overlap",
        "no-decode-landing",
        "a stream reads KV that is still being copied",
    ),
    "pages of V4 not given back": Control(
        "decode: V4", "no-page-back", "a stream finds what others have left in its pages"
    ),
    "window pages of V4 not given back": Control(
        "decode: V4", "no-window-page-back", "a stream finds what others have left in its windows"
    ),
    "states of V4 not given back": Control(
        "decode: V4", "no-request-back", "a stream finds what others have left in its states"
    ),
    "drafts of V4 not kept": Control(
        "decode: V4 with EAGLE",
        "no-drafts-copy",
        "the draft layer's window is left out of the copy",
        Shows.ACCEPTED,
        below=0.75,
    ),
    "drafts of the first token": Control(
        "decode: V4 with EAGLE",
        "first-drafts",
        "a resume drafts from what the prefill server sent",
        Shows.ACCEPTED,
        below=0.96,
    ),
}
"""By name: what is broken on purpose, in which scenario, and how it is noticed."""
