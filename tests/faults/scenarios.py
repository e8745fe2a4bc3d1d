"""The scenarios of the sweeps: initial files, a command, the command that continues it, and the expected files."""

import hashlib
import importlib.util
import json
import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from phmctl.storage import whole_steps
from tests.faults.harness import DISTURBANCES, OTHER, run

Command = Sequence[str]

RECIPE = """\
name: tiny
task: translation
data: {card: tiny, tokenizer: word, vocabulary: 40, joint: false, max_tokens: 8}
model:
  {algebra: phm, n: 2, width: 8, feed_forward: 8, heads: 2, encoder_layers: 1, decoder_layers: 1, dropout: 0.1,
   share_embeddings: false}
training:
  {steps: 6, batch_tokens: 128, learning_rate: 0.01, warmup: 2, log_every: 1, validate_every: 2, save_every: 2, keep: 2,
   average: 3, device: cpu, threads: 1, precision: float32}
decoding: {beam: 2}
"""
# The formats of `export` whose library is here.
EXPORTS = {"safetensors": "safetensors", "ctranslate2": "ctranslate2"}
EXPORTS |= {"onnx": "onnxscript"}
CLOCK = ("seconds", "seconds_per_step", "tokens_per_second")


@dataclass(frozen=True)
class Scenario:
    """A command with its initial files and the commands that continue it."""

    name: str  # for people
    prepare: Sequence[Command]  # commands that make the initial files
    command: Command  # the disturbed command
    repeat: Callable[[Path], Sequence[Command]]  # the commands a user runs afterwards, given the folder
    checkpoints: bool = False  # whether a complete checkpoint must survive
    processes: int = 1  # running the command: one, or two of which the first writes

    @property
    def disturbances(self) -> Sequence[str]:
        """The disturbances that apply."""
        return DISTURBANCES if self.processes == 1 else (*DISTURBANCES, OTHER)


def scenarios(work: Path) -> list[Scenario]:
    """Return all scenarios, with their files below `work`."""
    data, runs, recipe = str(work / "data"), str(work / "runs"), str(work / "recipe.yaml")
    files = list[str]()
    for split in ("train", "valid", "test"):
        files += [f"--{split}", str(work / f"{split}.source"), f"--{split}", str(work / f"{split}.target")]
    settings = ("--tokenizer", "word", "--vocabulary", "40", "--separate", "--max-tokens", "8", "--data", data)
    prepare = ("prepare-data", "tiny", *files, *settings)
    train = ("train", recipe, "--data", data, "--runs", runs)
    short, longer = (*train, "--steps", "2"), (*train, "--resume")
    earlier = (*longer, "--checkpoint", "step-000004")
    two = (*train, "--set", "training.accumulate=2", "--set", "training.batch_tokens=64")
    evaluate = ("eval", f"{runs}/tiny", "--device", "cpu")
    decode = ("decode", f"{runs}/tiny", "--input", str(work / "test.source"), "--output", str(work / "out"))

    def go_on(folder: Path, train: Command = train) -> Sequence[Command]:
        return [(*train, "--resume") if any((folder / "runs").glob("*/*/v*")) else train]

    return [
        Scenario("train", [prepare], train, go_on),
        Scenario("train-resumed", [prepare, short], longer, lambda folder: [longer], checkpoints=True),
        Scenario("train-from-an-earlier-step", [prepare, train], earlier, go_on, checkpoints=True),
        Scenario("prepare-data", [], prepare, lambda folder: [prepare]),
        Scenario("prepare-data --force", [prepare], (*prepare, "--force"), lambda folder: [prepare]),
        Scenario("eval", [prepare, train], evaluate, lambda folder: [evaluate]),
        Scenario("decode --output", [prepare, train], decode, lambda folder: [decode]),
        *_exports(work, [prepare, train]),
        Scenario("two processes", [prepare], two, partial(go_on, train=two), processes=2),
    ]


def _exports(work: Path, prepare: Sequence[Command]) -> list[Scenario]:
    """Exports to each format, and one over another; ``--force`` replaces a complete export."""
    exports = []
    for to in [name for name, library in EXPORTS.items() if importlib.util.find_spec(library)]:
        command = ("export", str(work / "runs" / "tiny"), "--to", to, "--output", str(work / "exported"))
        force = (*command, "--force")

        def repeat(folder: Path, command: Command = command, force: Command = force) -> Sequence[Command]:
            return [force if (folder / "exported").exists() else command]

        exports.append(Scenario(f"export --to {to}", prepare, command, repeat))
        if to == "safetensors":
            exports.append(Scenario(f"export --to {to} --force", [*prepare, command], force, lambda _, f=force: [f]))
    return exports


def write_inputs(work: Path) -> None:
    """Write the recipe and a corpus of thirty pairs."""
    generator = random.Random(3)
    words = [a + b for a in "bdfgk" for b in "aeiou"]
    for split, count in (("train", 60), ("valid", 6), ("test", 6)):
        lines = [generator.choices(words[:12], k=generator.randint(2, 6)) for _ in range(count)]
        for side, shift in (("source", 0), ("target", 12)):
            text = "".join(" ".join(words[words.index(word) + shift] for word in line) + "\n" for line in lines)
            (work / f"{split}.{side}").write_text(text)
    (work / "recipe.yaml").write_text(RECIPE)


def make_state(scenario: Scenario, work: Path, log: Path) -> None:
    """Make the initial files of a scenario."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    write_inputs(work)
    ended = run(scenario.prepare, work, log)
    if ended.code:
        raise RuntimeError(f"{scenario.name}: {ended.output}")


def contents(work: Path) -> dict[str, str]:
    """Return a digest of each file, without times and other values that differ between equal runs."""
    digests = {}
    for path in work.rglob("*"):
        name = str(path.relative_to(work))
        if path.is_dir():
            digests[f"{name}/"] = ""
        else:
            digests[name] = _digest(path)
    return digests


def _digest(path: Path) -> str:
    if path.name == "environment.json":
        return "any"
    if path.name == "metrics.jsonl":
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        return json.dumps([{key: value for key, value in entry.items() if key not in CLOCK} for entry in entries])
    # A result says how long it took, and names the commit and whether the checkout differs from it, which may change
    # while a sweep runs.
    passing = rb'"git": "[^"]*"|"(decoding_)?seconds": [^,}\n]*'
    return hashlib.sha256(re.sub(passing, b"", path.read_bytes())).hexdigest()


def differences(expected: dict[str, str], actual: dict[str, str]) -> list[str]:
    """Return the names of files that are missing, left behind or have other content."""
    problems = []
    for name in sorted(expected.keys() | actual.keys()):
        if name not in actual:
            problems.append(f"lost {name}")
        elif name not in expected:
            problems.append(f"left {name}")
        elif actual[name] != expected[name]:
            problems.append(f"other {name}")
    return problems


def whole_checkpoints(work: Path) -> list[int]:
    """Return the complete steps of the only run."""
    return [step for folder in (work / "runs").glob("*/*/v*/checkpoints") for step in whole_steps(folder)]
