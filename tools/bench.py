"""Measure what docs/performance.md and docs/export.md compare with torch and other engines, in turns.

::

    python tools/bench.py lstm --n 5                    # PHMLSTM against nn.LSTM, in the shape of Table 1's classifiers
    python tools/bench.py transformer RECIPE --n 4      # training steps against nn.Transformer, on the prepared data
    python tools/bench.py engines FILE RUN EXPORT ...   # translations of a file's lines by a run and its exports
    python tools/bench.py sentences DIR MODEL           # the ONNX file of examples/minilm.py, and MODEL in int8
"""

import argparse
import math
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import phmctl
from phmctl.benchmarks import (
    Bench,
    machine,
    mean_loss,
    parameters_of,
    stepper,
    time_in_turns,
    training_call,
    variants_of,
)
from phmctl.console import emit
from phmctl.data import PAD
from phmctl.data.prepared import data_root
from phmctl.devices import pick_device
from phmctl.nn.convert import to_dense
from phmctl.nn.lstm import PHMLSTM
from phmctl.recipe.loading import common_overrides, expect, resolve
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import TranslationRecipe
from phmctl.tasks import trains


def bench_lstm(n: int, d: int = 300, h: int = 300, batch: int = 256, steps: int = 40, rounds: int = 20) -> Bench:
    """Time ``PHMLSTM`` and ``nn.LSTM``: forward and backward, and the dense copy without gradients."""
    dense, phm = nn.LSTM(d, h, batch_first=True), PHMLSTM(d, h, n=n)
    evaluated = to_dense(phm)
    x = torch.randn(batch, steps, d)
    calls: dict[str, dict[str, Callable[[], object]]] = {
        "forward+backward": {
            "nn.LSTM": training_call(dense, lambda x: dense(x)[0], x),
            "phm": training_call(phm, lambda x: phm(x)[0], x),
        },
        "eval": {"nn.LSTM": torch.no_grad()(partial(dense, x)), "phm": torch.no_grad()(partial(evaluated, x))},
    }
    rows = []
    for mode, candidates in calls.items():
        timings = time_in_turns(f"LSTM {d} → {h}, n = {n}", candidates, rounds=rounds)
        for name, module in (("nn.LSTM", dense), ("phm", phm)):
            seconds, ratio = timings[name].seconds, timings[name].ratio
            row = {"mode": mode, "candidate": name, "seconds": seconds, "ratio": ratio}
            rows.append(row | {"parameters": parameters_of(module)})
    return Bench(f"LSTM {d} → {h}, n = {n}, {batch} sequences of {steps} steps", machine(), rows)


class TorchTransformer(nn.Module):
    """``nn.Transformer`` with a recipe's sizes; both sides and the generator share an embedding."""

    def __init__(self, section: TransformerSection, vocabulary: int, smoothing: float = 0.0) -> None:
        super().__init__()
        self.smoothing = smoothing
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="enable_nested_tensor")  # concerns inference only
            self.transformer = nn.Transformer(
                section.width,
                section.heads,
                section.encoder_layers,
                section.decoder_layers,
                section.feed_forward,
                section.dropout,
                batch_first=True,
                norm_first=section.norm == "pre",
            )
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            layer.dropout.p = section.activation_dropout
            for module in layer.children():
                if isinstance(module, nn.MultiheadAttention):
                    module.dropout = section.attention_dropout
        self.scale = math.sqrt(section.width)
        self.embedding = nn.Embedding(vocabulary, section.width)
        nn.init.normal_(self.embedding.weight, std=1 / self.scale)
        # One vector for all positions takes as long to add as a table of positions.
        self.positions = nn.Parameter(torch.zeros(section.width), requires_grad=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the mean label-smoothed cross-entropy for source (B, S) and target (B, T + 1), BOS to EOS."""
        padding = source == PAD  # (B, S)
        table = self.embedding.weight
        inputs, labels = target[:, :-1], target[:, 1:]  # (B, T)
        hidden = self.transformer(
            F.embedding(source, table) * self.scale + self.positions,
            F.embedding(inputs, table) * self.scale + self.positions,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(inputs.shape[1], device=target.device),  # (T, T)
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )  # (B, T, d)
        logits = F.linear(hidden, table).flatten(0, 1)  # (B T, V)
        return F.cross_entropy(logits, labels.flatten(), ignore_index=PAD, label_smoothing=self.smoothing)


def bench_transformer(recipe: TranslationRecipe, data: str | None, batches: int = 3, rounds: int = 5) -> Bench:
    """Time training steps of a recipe's model, its dense twin and ``nn.Transformer`` on the same batches."""
    root, training = data_root(data), recipe.training
    device = pick_device(training.device)
    task: Any = trains(recipe).open(recipe, root)
    sample = [task.collate(rows).to(device) for rows in task.plan(0)[:batches]]
    models, steps = {}, {}
    for name, variant in variants_of(recipe).items():
        models[name] = trains(variant).open(variant, root).build_model(device)
        steps[name] = stepper(models[name], partial(mean_loss, task), training, sample, device)
    vocabulary = max(task.prepared.tokenizers.source.size, task.prepared.tokenizers.target.size)
    reference = TorchTransformer(recipe.model, vocabulary, training.label_smoothing).to(device)
    models["nn.Transformer"] = reference
    steps["nn.Transformer"] = stepper(
        reference,
        lambda model, batch: model(batch.source, batch.target),
        training,
        sample,
        device,
        torch.optim.Adam(reference.parameters()),
    )
    timings = time_in_turns("training steps", steps, rounds=rounds, device=device)
    rows = [
        {"candidate": name, "parameters": parameters_of(models[name]), "speed": timing.ratio.inverse}
        for name, timing in timings.items()
    ]
    return Bench(f"{recipe.name}, {training.precision}, speed over dense", machine(device), rows)


def bench_engines(lines: Sequence[str], folders: Sequence[str], rounds: int = 5) -> Bench:
    """Time the translations of a run and its exports; `same` counts those that equal the first folder's."""
    models = {folder: phmctl.load(folder, device="cpu") for folder in folders}
    texts: dict[str, list[str]] = {}

    def translate(folder: str) -> None:
        texts[folder] = [hypotheses[0].text for hypotheses in models[folder].translate(lines)]

    timings = time_in_turns("translation", {folder: partial(translate, folder) for folder in folders}, rounds=rounds)
    rows = []
    for folder, timing in timings.items():
        same = sum(text == first for text, first in zip(texts[folder], texts[folders[0]], strict=True))
        rows.append({"folder": folder, "seconds": timing.seconds, "speed": timing.ratio.inverse, "same": same})
    return Bench(f"{len(lines)} lines, speed over {folders[0]}", machine(), rows)


class SentenceEncoder(nn.Module):
    """A BERT that returns embeddings (B, d) of ids and mask (B, T), for the export."""

    def __init__(self, bert: nn.Module, embed: Callable[[nn.Module, dict[str, Tensor]], Tensor]) -> None:
        super().__init__()
        self.bert, self.embed = bert, embed

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.embed(self.bert, {"input_ids": input_ids, "attention_mask": attention_mask})


def bench_sentences(small: Path, dense: str, length: int = 30, rounds: int = 20) -> Bench:
    """Time onnxruntime on one thread: ``model.onnx`` of a folder, and a dense BERT with its maps in int8."""
    from onnxruntime import InferenceSession, SessionOptions
    from onnxruntime.quantization import quantize_dynamic
    from transformers import BertModel

    from examples.minilm import embed

    names = ("input_ids", "attention_mask")
    example = (torch.ones(2, 4, dtype=torch.long),) * 2
    bert = BertModel.from_pretrained(dense, add_pooling_layer=False, attn_implementation="eager")
    axes: Any = [{0: "batch", 1: "length"}] * 2
    one_thread = SessionOptions()
    one_thread.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        exact, rounded = Path(folder, "dense.onnx"), Path(folder, "int8.onnx")
        options: Any = {"input_names": names, "dynamic_shapes": axes, "verbose": False}
        torch.onnx.export(SentenceEncoder(bert, embed).eval(), example, exact, dynamo=True, **options)
        quantize_dynamic(exact, rounded)
        files = {"dense, int8": rounded, "small": small / "model.onnx"}
        sessions = {name: InferenceSession(file, one_thread) for name, file in files.items()}
        sizes = {name: file.stat().st_size for name, file in files.items()}
    rows = []
    for batch in (1, 32):
        ids = torch.randint(bert.config.vocab_size, (batch, length))
        inputs = {"input_ids": ids.numpy(), "attention_mask": torch.ones_like(ids).numpy()}
        calls = {name: partial(session.run, None, inputs) for name, session in sessions.items()}
        for name, timing in time_in_turns(f"{batch} texts", calls, rounds=rounds).items():
            row = {"texts": batch, "model": name, "bytes": sizes[name], "seconds": timing.seconds}
            rows.append(row | {"speed": timing.ratio.inverse})
    return Bench(f"texts of {length} tokens, one thread, speed over the dense model", machine(), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    lstm = commands.add_parser("lstm")
    lstm.add_argument("--n", type=int, default=5)
    transformer = commands.add_parser("transformer")
    transformer.add_argument("recipe")
    transformer.add_argument("--n", type=int)
    transformer.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    transformer.add_argument("--data")
    engines = commands.add_parser("engines")
    engines.add_argument("file", type=Path)
    engines.add_argument("folders", nargs="+")
    sentences = commands.add_parser("sentences")
    sentences.add_argument("folder", type=Path)
    sentences.add_argument("model")
    options = parser.parse_args()
    if options.command == "lstm":
        bench = bench_lstm(options.n)
    elif options.command == "transformer":
        recipe = resolve(options.recipe, common_overrides(n=options.n), options.set)
        bench = bench_transformer(expect(recipe, TranslationRecipe), options.data)
    elif options.command == "sentences":
        bench = bench_sentences(options.folder, options.model)
    else:
        bench = bench_engines(options.file.read_text(encoding="utf-8").splitlines(), options.folders)
    emit(bench.table().drawn())


if __name__ == "__main__":
    main()
