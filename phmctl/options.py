"""The options of each command: name, help, type, default. The command line, the library and sweeps read them here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phmctl.errors import RecipeError, UserError


@dataclass(frozen=True)
class Option:
    """An option, or an argument, of a command."""

    name: str  # as functions have it; ``list_`` is ``--list``
    help: str  # what people are told
    type: Any = str  # of a value. A bool is False where it is not given, or None where it has two flags
    default: Any = None  # ``...`` where it must be given
    flags: str = ""  # where the command line does not write it ``--name``: ``-o --output``; ``--yes/--no`` of a bool
    argument: str = ""  # what an argument is called in the help
    metavar: str | None = None  # what stands for a value in the help
    least: float | None = None  # the least number
    most: float | None = None  # the greatest number
    many: bool = False  # it may be repeated
    axis: bool = False  # several values make a sweep, where the command has ``--jobs``

    @property
    def written(self) -> list[str]:
        return self.flags.split() or [f"--{self.name.rstrip('_').replace('_', '-')}"]

    def arguments(self, value: Any) -> list[str]:
        """Return what a command line says for a value; nothing for the default."""
        yes, _, no = self.written[0].partition("/")
        if value in (None, self.default) or (value is False and not no):
            return []
        if self.argument:
            return [str(each) for each in (value if self.many else [value])]
        if self.many:
            return [part for each in value for part in (yes, str(each))]
        return [yes if value else no] if self.type is bool else [yes, str(value)]

    def taken(self, value: Any) -> Any:
        """Return what a program gave as the command line has it; raises UserError for a value of another type."""
        if self.metavar == "SRC,TGT" and isinstance(value, list | tuple):
            return ",".join(map(str, value))
        if self.many and isinstance(value, Mapping):
            value = [f"{name}={each}" for name, each in value.items()]
        if self.many and isinstance(value, list | tuple):
            return [str(each) for each in value]
        text = (str, Path, int) if self.metavar == "COLUMN" else (str, Path)
        kinds: tuple[type, ...] = {int: (int,), float: (int, float), bool: (bool,)}.get(self.type, text)
        if not isinstance(value, kinds) or (isinstance(value, bool) and self.type is not bool):
            raise UserError(f"{self.written[0]} is one {(self.metavar or self.type.__name__).lower()}, not {value!r}")
        if self.many:
            return [str(value)]
        return self.type(value) if self.type in (str, Path) else value

    def read(self, text: str) -> Any:
        """Return a value from text; raises RecipeError where it is no number and should be one."""
        try:
            if self.type is not int or text.strip().isdecimal():
                return self.type(text)
        except ValueError:
            pass
        what = "a whole number without a sign" if self.type is int else "a number"
        raise RecipeError(f"{self.written[0]} {text}: expected {what}, or several parted by commas")


def command_line(options: Sequence[Option], given: Mapping[str, Any]) -> list[str]:
    return [word for each in options for word in each.arguments(given.get(each.name))]


def _either(name: str, text: str, no: str = "", **more: Any) -> Option:
    """Return an option of two flags; ``--NAME`` and, unless it is given, ``--no-NAME``."""
    return Option(name, text, bool, flags=f"--{name}/--{no or f'no-{name}'}", **more)


RECIPE = Option("recipe", "Recipe: a path or a shipped name.", argument="RECIPE")
GIVEN_RECIPE = replace(RECIPE, default=...)
MODEL = Option("run", "Run, folder of versions (its newest run is used) or export.", Path, ..., argument="RUN")
N = Option("n", "Kronecker products: about 1/n of the parameters; 1 is dense.", int, axis=True)
ALGEBRA = Option(
    "algebra",
    "real, complex, quaternion, octonion, sedenion, phm (a learned rule); to compare: low-rank, monarch.",
    axis=True,
)
DEVICE = Option("device", "auto, cpu, cuda or cuda:N.")
PRECISION = Option("precision", "Translation: compute in float32 or bfloat16.", axis=True)
ENGINE = Option("engine", "torch, ctranslate2 or onnx; the run is exported once and keeps the export.")
QUANTIZE = Option("quantize", "Type of --engine ctranslate2: float32, int8, bfloat16, …")
SETTINGS = Option(
    "settings", "Set any recipe key: training.clip=1.0.", flags="--set", metavar="KEY=VALUE", many=True, axis=True
)
DATA = Option("data", "Data folder (default: $PHMCTL_DATA or ./data).", Path)
RUNS = Option("runs", "Folder of runs (default: $PHMCTL_RUNS or ./runs).", Path)
CHECKPOINT = Option(
    "checkpoint",
    "best, last, average or step-N; auto: the average if the recipe asks for one, else best.",
    default="auto",
    axis=True,
)
SPLIT = Option("split", "test, valid, test_NAME (a named test set) or all (test sets).", default="test", axis=True)
JSON = Option("json", "Print one JSON document on stdout and nothing else there.", bool)
JOBS = Option("jobs", "Number of scorings that run at once; they share the threads.", int, least=1)
THREADS = Option("threads", "Number of CPU threads; 0 leaves torch's own choice.", int, 0, least=0)
BEAM = Option("beam", "Beam size; 1 is greedy. Default: the recipe's.", int, axis=True)
ALPHA = Option("alpha", "Exponent of the length penalty. Default: the recipe's.", float, axis=True)
BATCH_TOKENS = Option("batch_tokens", "Number of source tokens in a batch, padding included.", int)
ANSWERING = (BEAM, ALPHA, BATCH_TOKENS, PRECISION, ENGINE, QUANTIZE)

VOCABULARY = (  # of prepare-data: how text becomes tokens, instead of as the recipe or the card says
    Option("tokenizer", "bpe or word."),
    Option("vocabulary", "Number of token types; of each side with --separate.", int),
    _either("joint", "Translation: one vocabulary for both sides, or one for each.", "separate"),
    Option("reverse", "Translation: from the corpus' target language to its source language.", bool),
    Option("copies", "Translation: train on each target as its own source too (style transfer).", bool),
    Option("max_tokens", "Length of the longest text kept in train, in tokens.", int),
)
CLEANING = (  # how it is cleaned, instead of as the card says
    _either("lowercase", "Lower-case the text to tokenize (default: the card's)."),
    _either("normalise", "Apply Unicode NFC; replace blanks of all kinds by one."),
    Option("entities", "decode: turn Moses' &apos; and the like into characters; or keep."),
    Option("max_ratio", "Largest ratio of the lengths of a train pair in tokens; 0 keeps all.", float),
    Option("min_count", "Least number of occurrences of a word, or of a pair that BPE joins.", int, least=1),
)
FILES = (  # the user's own parallel text, by split
    Option("train", "Your own training files, or one table of both sides.", metavar="SRC TGT", many=True),
    Option("valid", "Your own validation files.", metavar="SRC TGT", many=True),
    Option("test", "Your own test files; NAME makes a test set of its own.", metavar="[NAME=]SRC TGT", many=True),
)
OWN = (  # how tables are read, and what labelled text has besides
    Option("columns", "Columns of source and target in a table: names, or numbers from 0.", metavar="SRC,TGT"),
    Option("languages", "Languages of your own files, by codes: de,en.", metavar="SRC,TGT"),
    Option("table", "Your own labelled text: TSV, CSV or JSON lines.", metavar="SPLIT=FILE", many=True),
    Option("text", "Column of the text in --table; twice for pairs.", metavar="COLUMN", many=True),
    Option("label", "Column of the label in --table files.", metavar="COLUMN"),
    _either("quoting", "Whether table cells may be quoted (default: only in CSV)."),
    _either("header", "Whether tables have a header; without one, columns are numbers from 0."),
    Option("extra", "Column of whole numbers; eval prints scores for each value.", metavar="COLUMN", many=True),
    Option("vectors", "Word vectors for labelled text, in GloVe's text format.", Path, metavar="FILE"),
    Option("skip_bad_lines", "Leave out and count lines of your own files that cannot be read.", bool),
)
PREPARE = (
    Option("name", "Name of a dataset card, or a name for your own corpus.", argument="NAME"),
    Option("source", "Folder with the card's files; without it they are downloaded.", Path),
    Option("recipe", "Read tokenizer, vocabulary and lengths from this recipe."),
    *FILES,
    *OWN,
    Option("vocabulary_of", "Use the vocabulary of a run or of a prepared folder.", Path, metavar="RUN"),
    *VOCABULARY,
    *CLEANING,
    DATA,
    Option("force", "Prepare anew even if nothing has changed.", bool),
    Option("refetch", "Download the card's files again.", bool),
    Option("list_", "List the dataset cards, or show that of NAME.", bool),
    JSON,
)

TRAIN = (
    RECIPE,
    N,
    ALGEBRA,
    Option("seed", "Seed of initialisation, dropout and batch order.", int, axis=True),
    DEVICE,
    Option("steps", "Number of optimiser steps.", int, axis=True),
    Option("execution", "How PHM maps are applied: dense or rank (default: rank where it is faster).", axis=True),
    Option("init", "Copy tensors of the same name and shape from this run.", metavar="RUN", axis=True),
    SETTINGS,
    DATA,
    RUNS,
    Option("resume", "Continue RUN, or RECIPE's newest run; auto: start one if there is none.", metavar="[RUN|auto]"),
    Option("checkpoint", "With --resume: checkpoint to continue from: last (default), best or step-N."),
    Option("tag", "Name of the new run; commands accept it in place of a folder."),
    Option("processes", "Number of processes on this machine; torchrun starts them on several.", int, 1, least=1),
    replace(JOBS, help="Number of trainings of a sweep that run at once; they share the threads."),
    Option("list_", "Print one command for each training, for a job array; train nothing.", bool),
    Option("dry_run", "Print recipe and parameters; train nothing.", bool),
    JSON,
)

DECODE = (
    MODEL,
    Option("input_", "Text file with one sentence in each line (default: stdin).", Path, flags="--input"),
    Option("output", "Write the answers to this file, anew, as they come (default: stdout).", Path),
    Option("resume", "Continue an incomplete --output; begin it if there is none.", bool),
    Option("split", "Decode this split of the run's own text: test or valid."),
    CHECKPOINT,
    Option("n_best", "Number of hypotheses to print for each line: its number, rank, score, text.", int, least=1),
    *ANSWERING,
    Option("window", "Largest number of lines that are answered together.", int, 1024, least=1),
    Option("pause", "Seconds between two looks at what has come through a pipe.", float, 0.05, least=0),
    DEVICE,
    THREADS,
    Option("strict", "Refuse over-long lines instead of cutting them.", bool),
    Option("json", "Print one JSON object for each line of input.", bool),
)

EVAL = (
    replace(MODEL, name="names", help="Runs, folders of versions (newest run), tags or exports.", many=True, axis=True),
    SPLIT,
    Option("against", "Compare with this run by a paired test; it is only read.", Path, metavar="RUN2", axis=True),
    CHECKPOINT,
    *ANSWERING,
    Option("probing", "Probe a translator's encoder (Table 3 of Li et al. 2020).", bool),
    replace(SETTINGS, help="With --probing: set a key of the recipe 'probe'.", axis=False),
    DATA,
    _either("lowercase", "Score BLEU and chrF in lower case (default: as the corpus).", "cased"),
    Option("tokenize", "Tokenizer of BLEU: 13a, zh, ja-mecab, flores200, … (default: the language's)."),
    Option("source", "Source text to score in place of a split.", Path, metavar="FILE"),
    Option("reference", "Reference translations of --source.", Path, metavar="FILE", many=True),
    Option("table", "Labelled text to score a classifier on in place of a split.", Path, metavar="FILE"),
    Option("text", "Column of the text in --table; twice for pairs.", metavar="COLUMN", many=True),
    Option("label", "Column of the label in --table.", metavar="COLUMN"),
    DEVICE,
    THREADS,
    Option("every", "Score every run that RUN names, not only the newest.", bool, flags="--all"),
    JOBS,
    Option("list_", "Print one command for each scoring, for a job array; score nothing.", bool),
    JSON,
)

COMPARING = (
    Option("names", "Runs, folders of runs, or tags.", argument="RUN", many=True),
    Option("recipe", "Compare all runs of this recipe.", metavar="NAME"),
    Option("baseline", "Run or variant to compare with (default: the dense model).", metavar="RUN|VARIANT"),
    SPLIT,
    Option("checkpoint", "Use only results of this checkpoint: best, last, average or step-N."),
    Option("score", "Score the runs that have no result.", bool, flags="--eval"),
)

COMPARE = (
    *COMPARING,
    Option(
        "best", "Compare each model at its value of this key that is best on valid.", flags="--best-of", metavar="KEY"
    ),
    Option("budget", "parameters (without embeddings) or minutes: only models that use what the baseline does."),
    Option("margin", "Test whether each model is not inferior to the baseline by so many points.", float),
    Option("format", "table, csv, latex or json.", default="table"),
    Option("paper", "A published table beside our runs: table1 to table5, ceng501, ni.", metavar="TABLE"),
    RUNS,
    JSON,
)

REPORT = (
    *COMPARING,
    Option("output", "HTML file to write.", Path, Path("report.html"), flags="--output -o"),
    RUNS,
    JSON,
)

DISTIL = (
    Option("teacher", "A trained translator or classifier.", default=..., argument="TEACHER_RUN"),
    Option("recipe", "The student's recipe (default: the teacher's)."),
    N,
    ALGEBRA,
    Option("seed", "Seed of the student.", int),
    Option("steps", "Number of optimiser steps of the student.", int, least=1),
    SETTINGS,
    Option("start", "nearest: with the Kronecker sums nearest to the teacher's maps; or random.", default="nearest"),
    Option("beam", "Beam size of the teacher (default: its recipe's).", int, least=1),
    ENGINE,
    _either("references", "Train on the references too.", default=True),
    DATA,
    RUNS,
    Option("tag", "Name of the student's run."),
    JSON,
)


@dataclass(frozen=True)
class Limits:
    """How much a request may ask, how much is answered at once, and how much may wait."""

    body: int = 1 << 20  # bytes
    texts: int = 128  # of a request
    characters: int = 10_000  # of a text
    beam: int = 16  # the widest search
    seconds: float = 10.0  # until its body has come; a connection may be idle for as long
    connections: int = 256  # open at a time
    batch: int = 64  # texts that are answered together
    batch_tokens: int = 2048  # of them; a text that has more gets a batch of its own
    queue: int = 1024  # texts that may wait; a request that would make them more is refused
    wait: float = 5.0  # milliseconds, at most, for a batch to become as large as the last; a lone client never waits


SERVE = (
    MODEL,
    Option("host", "Address to listen on; 0.0.0.0 lets other machines in.", default="127.0.0.1"),
    Option("port", "Port; 0 takes a free one, which is printed.", int, 8000, least=0, most=65535),
    Option("allow_host", "Further host name that requests may use.", metavar="NAME", many=True),
    CHECKPOINT,
    ENGINE,
    QUANTIZE,
    PRECISION,
    DEVICE,
    THREADS,
    Option("workers", "Number of batches answered at once.", int, 1, least=1, most=64),
    Option("max_batch", "Largest number of texts in a batch.", int, Limits.batch, least=1),
    Option("max_batch_tokens", "Largest number of tokens in a batch.", int, Limits.batch_tokens, least=1),
    Option("max_wait", "Milliseconds that a batch waits for more texts.", float, Limits.wait, least=0, most=1000),
    Option("max_queue", "Largest number of waiting texts; more get 503.", int, Limits.queue, least=1),
    Option("max_texts", "Largest number of texts in a request.", int, Limits.texts, least=1),
    Option("max_characters", "Largest number of characters in a text.", int, Limits.characters, least=1),
    Option("max_body", "Largest number of bytes in a request's body.", int, Limits.body, least=1),
    Option("max_beam", "Largest beam that a request may ask for.", int, Limits.beam, least=1),
    Option("max_connections", "Largest number of open connections.", int, Limits.connections, least=1),
    Option("cut", "Answer the beginning of a text longer than the model knows, instead of 413.", bool),
    Option("grace", "Seconds for waiting texts when the server stops.", float, 30.0, least=0),
    JSON,
)

EXPORT = (
    replace(MODEL, help="Run, or folder of versions (its newest run is used)."),
    Option("to", "ctranslate2, onnx, safetensors or huggingface.", default=...),
    Option("output", "The folder to write.", Path, ..., flags="--output -o"),
    CHECKPOINT,
    Option("quantize", "CTranslate2's type: float32, int8, int8_float32, bfloat16, …  [default: float32]"),
    Option("texts", "Number of validation texts to compare (default: all).", int, least=1),
    Option("force", "Replace an export in the folder.", bool),
    THREADS,
    JSON,
)

RECIPES = (Option("name", "Recipe to print, with its comments.", argument="RECIPE"), JSON)

LISTED = (
    Option("names", "Recipes, variants, runs or tags (default: all runs).", argument="NAME", many=True),
    RUNS,
    JSON,
)

COUNT = (
    replace(RECIPE, help="Recipe: a path or a shipped name; with --paper also table1, table2, table4, table5 or ni."),
    Option("n", "One n, or several to compare: 1,2,4,8,16."),
    Option("algebra", "One algebra, or several to compare: phm,quaternion."),
    Option("paper", "Print the published figures beside ours.", bool),
    SETTINGS,
    JSON,
)

AGAINST = Option("against", "Speeds are ratios to dense (the dense twin) or base (no compositions).", default="dense")
ROUNDS = Option("rounds", "Number of samples of each candidate.", int, 10, least=1)
ANY_DEVICE = Option("device", "auto, cpu, cuda or cuda:N.", default="auto")
ANY_ALGEBRA = Option("algebra", "phm or a fixed algebra.", default="phm")
MEASURED = (ANY_DEVICE, replace(ROUNDS, default=20), THREADS, JSON)
NS = Option("n", "Values of n, separated by commas.", default="4")
BENCHED = (GIVEN_RECIPE, N, ALGEBRA, DEVICE, SETTINGS, DATA)

BENCH_LAYER = (
    Option("in_features", "d, width of the input.", int, 512, least=1, flags="-d --in-features"),
    Option("out_features", "k, width of the output.", int, 512, least=1, flags="-k --out-features"),
    NS,
    Option("tokens", "Numbers of tokens, separated by commas.", default="16,512,4096"),
    ANY_ALGEBRA,
    Option("execution", "dense, rank or dense,rank (default: dense, with factors also rank)."),
    Option("parametrization", "rule (A) or factors of a learned rule; --rank implies factors.", default="rule"),
    Option("rank", "Number of factors R (default: that of a random rule).", int, least=1),
    Option("dtype", "float32, float64, bfloat16 or float16.", default="float32"),
    *MEASURED,
)

BENCH_LSTM = (
    Option("in_features", "d, width of the input.", int, 300, least=1, flags="-d --in-features"),
    Option("hidden", "Width of the state.", int, 300, least=1, flags="-k --hidden"),
    replace(NS, default="5"),
    Option("batch", "Number of sequences.", int, 256, least=1),
    Option("steps", "Number of steps of each sequence.", int, 40, least=1),
    ANY_ALGEBRA,
    Option("gates", "separate or fused maps of the gates.", default="separate"),
    *MEASURED,
)

BENCH_TRAIN = (
    *BENCHED,
    Option("batches", "Number of different batches in a sample.", int, 4, least=1),
    AGAINST,
    ROUNDS,
    JSON,
)

BENCH_RATES = (*BENCHED, JSON)

BENCH_DECODE = (
    *BENCHED,
    Option("split", "Split whose sentences are translated.", default="test"),
    Option("sentences", "Number of sentences.", int, 1000, least=1),
    replace(ROUNDS, default=5),
    AGAINST,
    Option("engine", "Engine of a run: torch, onnx, ctranslate2, ctranslate2:int8; the first is 1.", many=True),
    JSON,
)
