"""`python -m gpuspool.trainer.tiny DIR`: a tiny random model, its tokenizer and data, to try the trainer with.

Nothing is downloaded, and the same seed makes the same files. The model is a GPT-2 of about 150,000 parameters with
dropout, so that a resume that loses the state of the random numbers shows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Sequence

VOCABULARY = 320
WINDOW = 256


def build(folder: str, *, rows: int = 200, seed: int = 0) -> None:
    """Write `folder/model` and `folder/data.jsonl` with that many rows; raises OSError."""
    os.makedirs(folder, exist_ok=True)
    write_data(os.path.join(folder, "data.jsonl"), rows, seed)
    write_model(os.path.join(folder, "model"), seed)


def write_data(path: str, rows: int, seed: int) -> None:
    """Write rows of small sums in words, of different lengths."""
    numbers = random.Random(seed)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(rows):
            terms = [numbers.randrange(100) for _ in range(numbers.randrange(2, 7))]
            text = f"{' + '.join(map(str, terms))} = {sum(terms)}"
            file.write(json.dumps({"text": text}) + "\n")


def write_model(folder: str, seed: int) -> None:
    """Write a random GPT-2 and a byte-level tokenizer that knows every text."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>", model_max_length=WINDOW
    )
    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=WINDOW,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.1,
        embd_pdrop=0.1,
        attn_pdrop=0.1,
        bos_token_id=wrapped.eos_token_id,
        eos_token_id=wrapped.eos_token_id,
        pad_token_id=wrapped.pad_token_id,
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    wrapped.save_pretrained(folder)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and build."""
    parser = argparse.ArgumentParser(prog="python -m gpuspool.trainer.tiny", description=__doc__)
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument(
        "--rows", type=int, default=200, metavar="N", help="rows of data.jsonl (default: 200)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="of the weights and the data (default: 0)"
    )
    options = parser.parse_args(argv)
    build(options.folder, rows=options.rows, seed=options.seed)
    print(f"{options.folder}: model/ and data.jsonl with {options.rows} rows")


if __name__ == "__main__":
    main()
