"""Convert a dense translator of phmctl, and let it learn from its dense self (docs/shrink.md).

    python examples/translator.py multi30k-de-en/real --share 0.25

The command needs a trained run and its prepared data. The inputs are the training pairs, and what is learned is the
dense model's distribution of each next token. BLEU on a split is printed of the dense model, and of the small one at
each stage.
"""

import argparse
import tempfile
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor, nn

import phmctl
from phmctl.data import PAD
from phmctl.data.batches import collate, lengths_of, plan_by_tokens
from phmctl.data.prepared import PreparedData, Split, data_root
from phmctl.runs import Run

CALIBRATION = 20  # batches for the conversion
Batch = tuple[Tensor, Tensor]  # source (B, S), and target (B, T), which begins with BOS


def batches(split: Split, tokens: int, seed: int) -> Iterator[Batch]:
    """Yield random batches of similar lengths without end."""
    for epoch in count():
        for rows in plan_by_tokens(lengths_of(split), tokens, seed=seed, epoch=epoch):
            batch = collate(split, rows)
            yield batch.source, batch.target[:, :-1]


def main() -> None:
    """Convert, heal, save and measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--split", default="valid")
    parser.add_argument("--lines", type=int, help="only the first lines of the split")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--share", type=float, default=0.25, help="of the dense model's numbers")
    sizes.add_argument("--n", type=int, help="PHM instead of low rank, to compare")
    parser.add_argument("--bfloat16", action="store_true", help="heal in bfloat16, which new processors compute faster")
    parser.add_argument("--lr", type=float, default=0.0125)
    for name, number in (("steps", 1000), ("tokens", 2048), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    run, translator = Run.open(options.run), phmctl.load(options.run, device="cpu")
    data = PreparedData.find(run.recipe.data, data_root())
    sources, references = (side[: options.lines] for side in data.split(options.split).texts)

    def logits(model: Any, batch: Batch) -> Tensor:
        """Return the logits (N, V) of all positions that are not padding."""
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bfloat16):
            return model.logits(model(*batch)[batch[1] != PAD])  # type: ignore[no-any-return]

    def show(stage: str, model: nn.Module, size: int | None = None) -> None:
        translator.engine.model = model.eval()
        found = [translations[0].text for translations in translator.translate(sources)]
        size = size or 4 * sum(parameter.numel() for parameter in model.parameters())
        print(f"{stage:16} {size:12,} bytes  BLEU {BLEU().corpus_score(found, [references]).score:6.2f}", flush=True)

    dense = phmctl.to_dense(translator.engine.model)
    train, seed = data.split("train"), options.seed
    size: Any = {"n": options.n} if options.n else {"share": options.share}
    small, _ = phmctl.convert(dense, **size, inputs=islice(batches(train, options.tokens, seed), CALIBRATION))
    show("dense", dense)
    show("converted", small)
    steps: Any = {"steps": options.steps, "lr": options.lr, "quantize": "int4", "target": "probabilities"}
    phmctl.heal(small, dense, batches(train, options.tokens, seed), output=logits, **steps)
    with tempfile.TemporaryDirectory() as folder:
        phmctl.save(small, folder, quantize="int4")
        size = Path(folder, "model.safetensors").stat().st_size
        show("healed, 4 bits", phmctl.load_into(phmctl.to_dense(dense), folder), size)


if __name__ == "__main__":
    main()
