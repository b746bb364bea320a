"""Command line of the emulator: ``tokenflow-tiny-model --arch llama OUT_DIR``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tokenflow_sgl_emulator.models import ARCHS, make_tiny_lora, make_tiny_model


def main(argv: Sequence[str] | None = None) -> None:
    """Write a tiny model, and a LoRA adapter for it if asked; print the paths written."""
    parser = argparse.ArgumentParser(
        prog="tokenflow-tiny-model",
        description="Write a tiny random model for SGLang; same arguments, same weights.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("out_dir", type=Path, metavar="OUT_DIR", help="folder to write")
    parser.add_argument("--arch", choices=ARCHS, default="llama", help="model family")
    parser.add_argument("--layers", type=int, default=4, help="decoder layers")
    parser.add_argument("--hidden", type=int, default=64, help="width of the residual stream")
    parser.add_argument("--intermediate", type=int, default=128, help="width of the MLP")
    parser.add_argument("--heads", type=int, default=4, help="attention heads")
    parser.add_argument("--kv-heads", type=int, default=2, help="key-value heads")
    parser.add_argument("--vocab", type=int, default=512, help="token ids")
    parser.add_argument("--max-positions", type=int, default=32768, help="longest context, tokens")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights")
    parser.add_argument(
        "--all-tokens",
        action="store_true",
        help="let every token be generated, the end-of-sequence token too",
    )
    parser.add_argument(
        "--lora", type=Path, metavar="DIR", help="also write a LoRA adapter for the model to DIR"
    )
    args = parser.parse_args(argv)
    model = make_tiny_model(
        args.out_dir,
        args.arch,
        layers=args.layers,
        hidden=args.hidden,
        intermediate=args.intermediate,
        heads=args.heads,
        kv_heads=args.kv_heads,
        vocab=args.vocab,
        max_positions=args.max_positions,
        seed=args.seed,
        words_only=not args.all_tokens,
    )
    print(model)
    if args.lora is not None:
        print(make_tiny_lora(args.lora, model, seed=args.seed))
