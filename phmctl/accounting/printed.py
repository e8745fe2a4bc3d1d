"""The tables of the papers as they are printed: rows, parameter figures, scores, and what is said of the setup.

Zhang et al. 2021 (ICLR), Tables 1 to 5 and appendix B; the CENG501 reproduction of it; Li et al. 2020 (AAAI), Tables 1
and 2. ``count-params --paper`` explains the parameter figures, ``compare --paper`` puts runs beside the scores.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Row:
    """A model.

    Attributes:
        label: its name, in our words.
        figure: its parameters as printed.
        variant: of the runs that are this model, the second part of their names.
        options: of ``train``, beside n: what makes a recipe this model.
        size: what is added to the names of the columns' recipes: ``-big``.
    """

    label: str
    figure: str
    variant: str
    options: tuple[str, ...] = ()
    size: str = ""

    @property
    def algebra(self) -> str:
        """Of its linear maps."""
        return self.variant.partition("-")[0]

    @property
    def n(self) -> int:
        """Of its linear maps; 1 where the algebra says it."""
        return int(self.options[1]) if self.options[:1] == ("--n",) else 1

    @property
    def upsize(self) -> int:
        """2 in the † rows."""
        return 2 if self.variant.endswith("-x2") else 1


@dataclass(frozen=True)
class Column:
    """What was measured on a corpus.

    Attributes:
        label: the corpus.
        recipe: that which reproduces it.
        scores: as printed, in the order of the rows; empty where nothing is printed.
        metric: in a result's scores; ``seconds/100 steps`` is taken from a training's log.
        setup: what is published of it, by recipe key.
        stand_ins: recipes of another corpus or setup that come near where nothing nearer was trained.
        remark: what else differs in our recipe, or nothing.
    """

    label: str
    recipe: str
    scores: tuple[str, ...]
    metric: str
    setup: Mapping[str, Any] = field(default_factory=dict)
    stand_ins: tuple[str, ...] = ()
    remark: str = ""


@dataclass(frozen=True)
class Printed:
    """A table.

    Attributes:
        key: its name on the command line.
        title: where it stands and what it is about.
        rows: models.
        columns: corpora.
        unsaid: what the paper does not say.
        score: how its scores are to be read.
    """

    key: str
    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    unsaid: str
    score: str

    def figures(self) -> dict[str, str]:
        """Return the parameter figures by label."""
        return {row.label: row.figure for row in self.rows}


def _phm(ns: Mapping[int, str], name: str = "PHM") -> tuple[Row, ...]:
    return tuple(Row(f"{name} n={n}", figure, f"phm-n{n}", ("--n", str(n))) for n, figure in ns.items())


def _dense(label: str, figure: str) -> Row:
    return Row(label, figure, "real", ("--n", "1"))


def _quaternion(label: str, figure: str) -> Row:
    return Row(label, figure, "quaternion", ("--algebra", "quaternion"))


_BLEU = "the paper does not say how its BLEU is computed; here it is sacreBLEU's, cased, detokenised"
_SPLIT = "its accuracy is of its own split; here of the run's"

# Table 1.

_LSTM = {"model.width": 300, "training.optimizer": "adam", "training.learning_rate": 4e-4, "training.batch_size": 256}


def _pairs(label: str, recipe: str, scores: str, metric: str = "accuracy", **more: Any) -> Column:
    return Column(label, f"table1-{recipe}", tuple(scores.split()), metric, _LSTM, **more)


TABLE_1 = Printed(
    "table1",
    "PHM paper, Table 1 (natural language inference, accuracy)",
    (
        _dense("LSTM", "721K"),
        _quaternion("Quaternion LSTM", "180K"),
        *_phm({2: "361K", 5: "146K", 10: "81K"}, "PHM-LSTM"),
    ),
    (
        _pairs("MNLI", "mnli", "71.82 71.57 71.82 71.80 71.59"),
        _pairs("MNLI-mm", "mnli", "71.89 72.19 72.08 71.77 71.59", "accuracy test_mismatched"),
        _pairs("QNLI", "quora", "84.44 84.73 84.39 83.87 84.25"),
        _pairs("SNLI", "snli", "84.18 84.21 84.38 84.58 84.40", stand_ins=("table1-snli-full", "snli-counterfactual")),
        _pairs("DNLI", "dialogue-nli", "85.16 86.45 85.77 86.47 86.21"),
        _pairs("SciTail", "scitail", "74.36 75.58 77.47 74.64 77.84"),
    ),
    "steps, stopping, dropout, vocabulary, number of seeds",
    _SPLIT,
)

# Tables 2, 3 and 4.

_SEARCH = {"decoding.beam": 5, "decoding.alpha": 0.6}


def _shape(layers: int, heads: int, width: int, steps: int) -> dict[str, Any]:
    stacks = {"model.encoder_layers": layers, "model.decoder_layers": layers}
    return {**stacks, "model.heads": heads, "model.width": width, "training.steps": steps}


_WIDE, _LONG, _NARROW = _shape(4, 8, 512, 50_000), _shape(4, 8, 512, 100_000), _shape(2, 4, 256, 50_000)


def _corpus(label: str, recipe: str, setup: Mapping[str, Any], scores: str, **more: Any) -> Column:
    return Column(label, f"table2-{recipe}", tuple(scores.split()), "BLEU", {**setup, **_SEARCH}, **more)


_HELD_OUT = "its test set is not known; here valid and test are held out of the corpus"

TABLE_2 = Printed(
    "table2",
    "PHM paper, Table 2 (machine translation, BLEU)",
    (
        _dense("Transformer", "44M"),
        _quaternion("Quaternion", "11M"),
        *_phm({2: "22M", 4: "11M", 8: "5.5M", 16: "2.9M"}),
        *(
            Row(f"PHM n={n} †", figure, f"phm-n{n}-x2", ("--n", str(n), "--set", "model.upsize=2"))
            for n, figure in {2: "44M", 4: "22M", 8: "11M"}.items()
        ),
    ),
    (
        _corpus("En-Vi", "iwslt15-en-vi", _WIDE, "28.43 28.00 29.25 29.13 29.34 29.04 29.54 29.17 29.47"),
        _corpus("En-Id", "iwslt17-en-id", _WIDE, "47.40 42.22 46.32 44.13 40.81 33.48 49.05 46.24 43.49"),
        _corpus(
            "De-En",
            "iwslt14-de-en",
            _NARROW,
            "36.68 32.83 35.52 35.53 34.16 33.89 34.32 34.86 34.71",
            stand_ins=("multi30k-de-en",),
        ),
        _corpus("Ro-En", "iwslt14-ro-en", _NARROW, "34.60 30.53 33.40 32.74 31.88 31.53 33.88 33.80 32.59"),
        _corpus("En-Et", "wmt18-en-et", _LONG, "14.17 13.10 14.98 14.11 13.08 12.15 14.05 14.43 13.75"),
        _corpus(
            "En-Mk",
            "setimes-en-mk",
            _LONG,
            "13.96 13.67 13.60 13.01 12.95 11.97 14.41 13.78 13.78",
            remark=_HELD_OUT,
        ),
        _corpus("En-Ro", "wmt18-en-ro", _LONG, "22.79 18.50 21.73 21.19 21.66 19.63 22.18 21.91 21.43"),
    ),
    "optimiser, learning rate, batch, dropout, tokenizer and vocabulary, validation set, number of seeds",
    _BLEU,
)

SPEED = "seconds/100 steps"

TABLE_3 = Printed(
    "table3",
    "PHM paper, Table 3 (time on IWSLT'14 De-En)",
    (_dense("Transformer", "44M"), _quaternion("Quaternion", "11M"), *_phm({4: "11M", 8: "5.5M"})),
    (
        Column(
            "s/100 steps",
            "table3-iwslt14-de-en",
            ("7.61", "8.11", "7.92", "7.70"),
            SPEED,
            _NARROW,
            stand_ins=("table2-iwslt14-de-en", "multi30k-de-en"),
        ),
        Column("inference s", "table3-iwslt14-de-en", ("336", "293", "299", "282"), "seconds", {"decoding.beam": 4}),
    ),
    "processor, batch of training and of decoding",
    "seconds of another machine: only ratios to the Transformer's row compare; inference here is what eval took to "
    "decode the test set, and phmctl bench decode measures it in turns",
)

_COPIED = "Whoever copies the source scores 19.70 so, on the published test set as it is: more than any row"

TABLE_4 = Printed(
    "table4",
    "PHM paper, Table 4 (style transfer, BLEU)",
    (_dense("Transformer", "44M"), *_phm({2: "22M", 4: "11M", 8: "5.5M", 16: "2.9M"})),
    (
        Column(
            "Modern-Shakespeare",
            "table4-shakespeare",
            ("11.65", "12.20", "12.42", "11.66", "10.76"),
            "BLEU",
            {**_shape(4, 8, 512, 10_000), **_SEARCH},
            ("shakespeare", "ceng501-shakespeare"),
        ),
    ),
    "optimiser, learning rate, batch, dropout, tokenizer and vocabulary, number of seeds",
    f"{_BLEU}. {_COPIED}",
)

# Table 5.

TABLE_5 = Printed(
    "table5",
    "PHM paper, Table 5 (subject-verb agreement, accuracy)",
    (
        _dense("Transformer", "400K"),
        _quaternion("Quaternion", "100K"),
        *_phm({2: "200K", 4: "101K", 8: "56K"}),
    ),
    (
        Column(
            "agreement",
            "table5-agreement",
            ("94.80", "94.70", "95.14", "95.05", "95.62"),
            "accuracy",
            {"model.layers": 2, "model.heads": 4, "model.width": 128, "training.steps": 10_000},
            ("agreement-resplit",),
        ),
    ),
    "optimiser, learning rate, batch, dropout, the state that is read, number of seeds",
    _SPLIT,
)

# The CENG501 reproduction.


def _ceng501(
    name: str, title: str, figures: Mapping[int, str], scores: str, setup: Mapping[str, Any], **more: Any
) -> Printed:
    rows = [_dense("Transformer", figures[1]), *_phm({n: one for n, one in figures.items() if n > 1}, "PHM+")]
    adamw = {"training.optimizer": "adamw", "training.learning_rate": 1e-4, "training.weight_decay": 0.05}
    setup = {**setup, **adamw, "data.tokenizer": "word", "model.feed_forward": setup["model.width"], **_SEARCH}
    column = Column(name.removeprefix("ceng501-"), name, tuple(scores.split()), "BLEU", setup, **more)
    unsaid = "dropout, label smoothing, how its batches of sentences are made up, number of seeds"
    return Printed(
        name, title, tuple(rows), (column,), unsaid, "its BLEU is smoothed, it does not say how; here it is sacreBLEU's"
    )


CENG501_SHAKESPEARE = _ceng501(
    "ceng501-shakespeare",
    "CENG501, style transfer (BLEU)",
    {1: "29,421,568", 2: "13,857,048", 4: "7,043,264", 8: "3,651,072", 16: "2,072,576"},
    "17.52 16.55 15.39 16.09 16.36",
    {**_shape(4, 8, 512, 5_175), "data.vocabulary": 8192},
    stand_ins=("shakespeare", "table4-shakespeare"),
)
CENG501_DE_EN = _ceng501(
    "ceng501-de-en",
    "CENG501, De-En (BLEU)",
    {1: "27,309,056", 2: "13,579,416", 4: "6,830,272", 8: "3,463,680", 16: "1,844,224"},
    "17.91 17.89 17.30 18.02 17.65",
    {**_shape(2, 4, 256, 50_000), "data.vocabulary": 32768},
    remark="theirs is Europarl v7; the recipe's corpus is IWSLT'14",
)

# Neuron interaction.

Composition = Mapping[str, str]
COMPOSITIONS: dict[int, Composition] = {
    1: {},
    2: {"layers": "linear"},
    3: {"layers": "hierarchical"},
    4: {"heads": "hierarchical"},
    5: {"layers": "hierarchical", "heads": "hierarchical"},
    6: {"layers": "bilinear"},
    7: {"heads": "bilinear"},
    8: {"layers": "bilinear", "heads": "bilinear"},
}
"""What is composed how in the rows of Table 1, by the number that is printed beside them."""


def _composed(number: int, label: str, figure: str, size: Literal["", "-big"] = "") -> Row:
    composition = COMPOSITIONS[number]
    variant = "real" + "".join(f"-{place}-{kind}" for place, kind in composition.items())
    settings = (f"model.compose_{place}={composition.get(place, 'none')}" for place in ("layers", "heads"))
    options = tuple(part for setting in settings for part in ("--set", setting))
    return Row(label, figure, variant, () if number == 8 else options, size)


def _ni_setup(width: int, heads: int) -> dict[str, Any]:
    stacks = {"model.encoder_layers": 6, "model.decoder_layers": 6}
    return {**stacks, "model.width": width, "model.heads": heads, "model.norm": "post"}


_NI_UNSAID = "steps, dropout, optimiser (Vaswani et al. 2017 are followed), beam, number of seeds"
_NI_SCORE = "cased 4-gram NIST BLEU on newstest2014; here sacreBLEU's"
_GPUS = "8 GPUs of 4,096 tokens each a step, from a trained Transformer"

NI_TABLE_1 = Printed(
    "ni",
    "Neuron interaction, Table 1 (WMT14 En-De, BLEU)",
    (
        _composed(1, "Transformer-Base", "88.0M"),
        _composed(2, "+ Multi-Layer: Linear", "3.1M"),
        _composed(3, "+ Multi-Layer: Hierarchical", "23.1M"),
        _composed(4, "+ Multi-Head: Hierarchical", "13.6M"),
        _composed(5, "+ Both (3+4)", "36.7M"),
        _composed(6, "+ Multi-Layer: NI-based", "16.8M"),
        _composed(7, "+ Multi-Head: NI-based", "14.1M"),
        _composed(8, "+ Both (6+7)", "30.9M"),
    ),
    (
        Column(
            "En-De",
            "ni-wmt14-en-de",
            ("27.31", "27.77", "28.32", "28.13", "28.42", "28.31", "28.29", "28.54"),
            "BLEU",
            _ni_setup(512, 8),
            ("ni-multi30k-en-de",),
            _GPUS,
        ),
    ),
    _NI_UNSAID,
    _NI_SCORE,
)
NI_TABLE_2 = Printed(
    "ni-table2",
    "Neuron interaction, Table 2 (BLEU)",
    (
        _composed(1, "Base", "88M/95M"),
        _composed(8, "Base + NI", "118M/125M"),
        _composed(1, "Big", "264M/278M", "-big"),
        _composed(8, "Big + NI", "387M/401M", "-big"),
    ),
    (
        Column("En-De", "ni-wmt14-en-de", ("27.31", "28.54", "28.58", "29.17"), "BLEU", remark=_GPUS),
        Column("En-Fr", "ni-wmt14-en-fr", ("39.28", "40.15", "41.41", "42.10"), "BLEU", remark=_GPUS),
    ),
    _NI_UNSAID,
    _NI_SCORE,
)

PRINTED: dict[str, tuple[Printed, ...]] = {
    "table1": (TABLE_1,),
    "table2": (TABLE_2,),
    "table3": (TABLE_3,),
    "table4": (TABLE_4,),
    "table5": (TABLE_5,),
    "ceng501": (CENG501_SHAKESPEARE, CENG501_DE_EN),
    "ceng501-shakespeare": (CENG501_SHAKESPEARE,),
    "ceng501-de-en": (CENG501_DE_EN,),
    "ni": (NI_TABLE_1, NI_TABLE_2),
}
"""The tables by the names under which they are asked for."""
