"""The loss in each model's forward: what wrappers such as DistributedDataParallel must see."""

import torch
from torch.nn import functional as F

from phmctl.assembly import build_classifier, build_rule_model, build_transformer
from phmctl.nn.loss import label_loss, vocabulary_loss
from phmctl.recipe.models import EncoderClassifierSection, PairClassifierSection, RuleModelSection, TransformerSection

IDS = torch.tensor([[5, 6, 7, 3], [8, 3, 0, 0]])
SIZES = {"width": 16, "heads": 2, "feed_forward": 32, "dropout": 0.0}


def test_the_transformer_returns_both_sums_of_its_hidden_states() -> None:
    section = TransformerSection(algebra="phm", n=4, encoder_layers=1, decoder_layers=1, **SIZES)
    model = build_transformer(section, 12, 12)
    hidden = model(IDS, IDS)
    _, weight, bias = model.output(hidden)
    found, expected = model(IDS, IDS, IDS, 0.1), vocabulary_loss(hidden, weight, bias, IDS, smoothing=0.1)
    assert [loss.item() for loss in found] == [loss.item() for loss in expected]
    log = F.cross_entropy(model.logits(hidden).flatten(0, 1), IDS.flatten(), ignore_index=0, reduction="sum")
    torch.testing.assert_close(found[1], log, rtol=1e-5, atol=1e-4)


def test_classifiers_return_the_summed_cross_entropy_of_their_logits() -> None:
    labels = torch.tensor([2, 0])
    for section, texts in (
        (EncoderClassifierSection(kind="encoder", algebra="phm", n=4, layers=1, **SIZES), (IDS,)),
        (
            PairClassifierSection(kind="lstm-pair", algebra="phm", n=4, width=8, embedding_width=8, dropout=0.0),
            (IDS, IDS),
        ),
    ):
        model = build_classifier(section, 12, 3)
        logits = model(*texts)
        expected = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.2)
        torch.testing.assert_close(model(*texts, labels=labels, smoothing=0.2), expected)


def test_the_rule_model_returns_the_summed_squared_error() -> None:
    model, x, y = build_rule_model(RuleModelSection(algebra="phm", n=4), 8), torch.randn(5, 8), torch.randn(5, 8)
    torch.testing.assert_close(model(x, y), (model(x) - y).square().sum())


def test_the_loss_of_labels_is_float32_at_least() -> None:
    logits = torch.randn(4, 3)
    assert label_loss(logits.bfloat16(), torch.tensor([0, 1, 2, 0])).dtype == torch.float32
    assert label_loss(logits.double(), torch.tensor([0, 1, 2, 0])).dtype == torch.float64
