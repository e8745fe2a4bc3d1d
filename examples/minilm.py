"""Shrink all-MiniLM-L6-v2, or another BERT for sentences, to a few megabytes (docs/shrink.md).

    pip install 'phmctl[huggingface,onnx]'
    python examples/minilm.py --text sentences.txt.gz --sts sts-dev.csv

The texts are 100,000 sentences of any source, one a line, without labels. The model becomes products of low rank that
learn to embed as it does. `minilm-small` gets them at 4 bits: `model.safetensors`, for ``phmctl.load_into``, and
`model.onnx`. With --bfloat16, 600 steps take 7 minutes of processor time for a first result, and 3,000 take 23 minutes
for 1.5 points more. The same command continues a run that was killed.
"""

import argparse
import gzip
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoTokenizer, BertModel

import phmctl

LENGTH, BATCH = 128, 32  # tokens of a text, texts of a batch
WINDOW, CALIBRATION = 40, 64  # batches that are sorted by length together, batches for the conversion


def embed(model: Callable[..., Any], batch: dict[str, Tensor]) -> Tensor:
    """Return the normalised means of a BERT's states (batch, width)."""
    states = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).to(states)
    return nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def padded(texts: Sequence[list[int]]) -> dict[str, Tensor]:
    """Return lists of ids as a batch, with zeros behind shorter lists."""
    ids = nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    lengths = torch.tensor([len(text) for text in texts])
    return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}


def batches(texts: list[list[int]], seed: int) -> Iterator[dict[str, Tensor]]:
    """Yield random batches without end. Texts of a batch are about equally long, which saves padding."""
    generator = random.Random(seed)
    while True:
        window = sorted(generator.sample(texts, min(len(texts), BATCH * WINDOW)), key=len)
        groups = [window[start : start + BATCH] for start in range(0, len(window), BATCH)]
        generator.shuffle(groups)
        yield from map(padded, groups)


def ranks(values: Tensor) -> Tensor:
    """Return the rank of each value, up to a constant. Equal values get the mean of their ranks."""
    _, places, counts = torch.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum(0) - counts / 2)[places]


@torch.no_grad()
def spearman(model: nn.Module, pairs: list[tuple[float, list[int], list[int]]]) -> float:
    """Return Spearman's correlation × 100 of the cosines of pairs and the scores that people gave."""
    model.eval()
    groups = [zip(*pairs[start : start + BATCH], strict=True) for start in range(0, len(pairs), BATCH)]
    cosines = [(embed(model, padded(left)) * embed(model, padded(right))).sum(1) for _, left, right in groups]
    orders = ranks(torch.cat(cosines)), ranks(torch.tensor([score for score, _, _ in pairs]))
    return 100 * torch.corrcoef(torch.stack(orders))[0, 1].item()


class Rounded(nn.Module):
    """The embeddings of a model whose matrices stay packed as in a file of phmctl.save, for a small ONNX file."""

    def __init__(self, model: nn.Module, path: Path) -> None:
        super().__init__()
        self.model = model
        self.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        for name, tensor in load_file(path).items():
            self.register_buffer(name.replace(".", "/"), tensor)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the embeddings (batch, width). A byte has two numbers, from 1 to 15, and a row has a scale."""
        weights = {}
        for name, shape in self.shapes.items():
            stored = self.get_buffer(name.replace(".", "/"))
            if stored.dtype == torch.uint8:
                scale = self.get_buffer(f"{name}.scale".replace(".", "/"))
                high = (stored.float() / 16).floor()
                numbers = torch.stack([stored - 16 * high, high], -1).flatten(-2) - 8
                stored = (numbers[..., : shape.numel() // scale.numel()] * scale).reshape(shape)
            weights[name] = stored
        batch = {"input_ids": input_ids, "attention_mask": attention_mask}
        return embed(lambda **inputs: torch.func.functional_call(self.model, weights, kwargs=inputs), batch)


def write_onnx(model: Any, folder: Path) -> None:
    """Write model.onnx of a model that was saved into a folder. Onnxruntime unpacks the numbers when it opens it."""
    model.set_attn_implementation("eager")  # in onnxruntime, a text is a tenth faster
    batch, graph = padded([[0] * 4, [0] * 2]), Rounded(model, folder / "model.safetensors").eval()
    axes, names = {name: {0: "batch", 1: "length"} for name in batch}, ["sentence_embedding"]
    options: Any = {"kwargs": batch, "dynamic_shapes": axes, "output_names": names, "optimize": False}
    program: Any = torch.onnx.export(graph, (), dynamo=True, verbose=False, **options)
    for node in program.model.graph:
        node.metadata_props.clear()  # half of the file: the places in Python
    program.save(folder / "model.onnx")


def main() -> None:
    """Convert, heal, save and measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2", help="folder or name on the hub")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="one sentence a line, also .gz")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--share", type=float, default=0.25, help="of the dense model's numbers")
    sizes.add_argument("--n", type=int, help="PHM instead of low rank, to compare")
    parser.add_argument("--bfloat16", action="store_true", help="heal in bfloat16, which new processors compute faster")
    for name, value in (("steps", 3000), ("lr", 0.0125), ("seed", 0)):
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--sts", type=Path, help="csv of the STS benchmark, for the table")
    parser.add_argument("--output", type=Path, default=Path("minilm-small"))
    options = parser.parse_args()
    missing = [path for path in (*options.text, options.sts) if path and not path.is_file()]
    if missing:
        parser.error(f"no file: {', '.join(map(str, missing))}")
    tokenizer: Any = AutoTokenizer.from_pretrained(options.model).backend_tokenizer
    tokenizer.no_padding(), tokenizer.enable_truncation(LENGTH)
    texts = []
    for path in options.text:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            texts += [encoding.ids for encoding in tokenizer.encode_batch(file.read().splitlines())]
    if not texts:
        parser.error("--text: the files hold no text")
    rows = [line.split("\t") for line in options.sts.open(encoding="utf-8")] if options.sts else []
    pairs = [(float(row[4]), *(tokenizer.encode(text).ids for text in row[5:7])) for row in rows]
    settings = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "add_pooling_layer": False}
    build = partial(BertModel.from_pretrained, options.model, **settings)

    def show(name: str, model: nn.Module, file: str | None = None) -> None:
        size = (options.output / file).stat().st_size if file else 4 * sum(map(Tensor.numel, model.parameters()))
        print(f"{name:20} {size:12,} bytes", f"{spearman(model, pairs):6.2f}" if pairs else "", flush=True)

    teacher = build()
    calibration = islice(batches(texts, options.seed), CALIBRATION)
    size: Any = {"n": options.n} if options.n else {"share": options.share}
    student, _ = phmctl.convert(teacher, **size, inputs=calibration)
    show("dense", teacher)
    show("converted", student)
    training: Any = {"steps": options.steps, "lr": options.lr, "quantize": "int4", "folder": options.output / "healing"}

    def output(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bfloat16):
            return embed(model, batch)

    phmctl.heal(student, teacher, batches(texts, options.seed), output=output, **training)
    phmctl.save(student, options.output, quantize="int4")
    show("healed, 4 bits", phmctl.load_into(build(), options.output), "model.safetensors")
    tokenizer.save(str(options.output / "tokenizer.json"))
    write_onnx(student, options.output)
    shutil.rmtree(training["folder"])


if __name__ == "__main__":
    main()
