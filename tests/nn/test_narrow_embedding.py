"""Tables of few columns with a map to the width: the same function everywhere, and what is counted."""

import pytest
import torch

from phmctl.accounting.ledger import ledger_for_recipe
from phmctl.assembly import build_classifier, build_transformer
from phmctl.errors import RecipeError
from phmctl.nn.convert import to_dense
from phmctl.nn.embedding import NarrowEmbedding
from phmctl.recipe.loading import load_recipe

WIDE = ("model.width=32", "model.feed_forward=64", "model.embedding_width=16")


PHM = ("model.algebra=phm", "model.n=4")


@pytest.mark.parametrize(
    "settings",
    [(), PHM, ("model.algebra=monarch", "model.n=4"), (*PHM, "model.embeddings=phm"), ("model.generator=dense",)],
)
def test_the_dense_copy_answers_alike(settings: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    section = load_recipe("miniature", [*WIDE, *settings]).model
    model = build_transformer(section, 40, 40).eval()
    source, target = torch.randint(4, 40, (3, 7)), torch.randint(4, 40, (3, 5))
    hidden = model.decode(model.encode(source), target)
    logits = model.logits(hidden)
    dense = to_dense(model)
    assert isinstance(model.source_embedding, NarrowEmbedding)
    assert isinstance(dense.source_embedding, torch.nn.Embedding)
    torch.testing.assert_close(dense.logits(dense.decode(dense.encode(source), target)), logits, atol=2e-5, rtol=1e-4)
    loss, _ = model(source, target, target)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
    torch.testing.assert_close(loss, expected.to(loss), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("settings", [(), PHM])
def test_a_classifier_too(settings: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model = build_classifier(load_recipe("table5-agreement", [*WIDE, *settings]).model, 40, 2).eval()
    ids = torch.randint(4, 40, (3, 7))
    dense = to_dense(model)
    assert isinstance(model.embedding, NarrowEmbedding)
    assert isinstance(dense.embedding, torch.nn.Embedding)
    torch.testing.assert_close(dense(ids), model(ids), atol=2e-5, rtol=1e-4)


def test_without_embeddings_counts_as_of_the_wide_table() -> None:
    wide, narrow = (ledger_for_recipe(load_recipe("miniature", list(settings))) for settings in (WIDE[:2], WIDE))
    assert narrow.without_embeddings == wide.without_embeddings
    assert wide.totals.parameters - narrow.totals.parameters == 2000 * 32 - (2000 * 16 + 16 * 32)


def test_n_divides_the_width_of_the_table() -> None:
    with pytest.raises(RecipeError):
        load_recipe("miniature", ["model.algebra=phm", "model.n=8", "model.embedding_width=20"])
