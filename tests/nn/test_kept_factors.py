"""Factors of a trained model: found once, kept, believed only if they give the rule back."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from phmctl import PHMLinear
from phmctl.nn import kept_factors
from phmctl.nn.kept_factors import FILE, set_execution


def two_maps(n: int = 4, **options: object) -> nn.Sequential:
    """Maps that share a rule, and one of its own."""
    torch.manual_seed(0)
    first = PHMLinear(24, 24, n=n, **options)
    shared = PHMLinear(24, 24, n=n, rule=first.A) if not options else PHMLinear(24, 24, n=n, **options)
    return nn.Sequential(first, shared, PHMLinear(24, 24, n=n, **options), nn.Linear(24, 8)).eval()


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The orders of the rules that were decomposed, as they were."""
    done: list[int] = []
    search = kept_factors.decompose

    def counted(rule: torch.Tensor):
        done.append(len(rule))
        return search(rule)

    monkeypatch.setattr(kept_factors, "decompose", counted)
    return done


@torch.no_grad()
def test_each_rule_is_decomposed_once_and_kept(tmp_path: Path, searches: list[int]) -> None:
    x = torch.randn(5, 24)
    model = two_maps()
    dense = model(x)
    set_execution(model, "rank", tmp_path)
    assert searches == [4, 4]  # three maps, two rules
    torch.testing.assert_close(model(x), dense)
    again = two_maps()
    set_execution(again, "rank", tmp_path)
    assert searches == [4, 4]
    assert torch.equal(again(x), model(x))
    assert {layer.execution for layer in again[:3]} == {"rank"}


@pytest.mark.parametrize("harm", ["other weights", "cut", "changed", "shape"])
@torch.no_grad()
def test_what_does_not_give_the_rule_back_is_not_used(tmp_path: Path, searches: list[int], harm: str) -> None:
    model = two_maps()
    set_execution(model, "rank", tmp_path)
    path = tmp_path / FILE
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    elif harm != "other weights":
        tensors = load_file(path)
        for name in tensors:
            tensors[name] = tensors[name] * 1.001 if harm == "changed" else tensors[name][:2].contiguous()
        save_file(tensors, path)
    trained = two_maps()
    if harm == "other weights":
        for layer in (trained[0], trained[2]):
            layer.A.add_(0.1)
    x = torch.randn(5, 24)
    dense = trained(x)
    set_execution(trained, "rank", tmp_path)
    assert len(searches) == 4
    torch.testing.assert_close(trained(x), dense)


def test_auto_leaves_it_to_the_first_use_and_writes_nothing(tmp_path: Path, searches: list[int]) -> None:
    small, large = two_maps(), two_maps(8)
    set_execution(small, None, tmp_path)
    set_execution(large, "auto", tmp_path)
    assert searches == []
    assert [layer.finds_factors for layer in (small[0], large[0])] == [True, False]
    assert list(tmp_path.iterdir()) == []


def test_auto_takes_what_is_kept(tmp_path: Path) -> None:
    set_execution(two_maps(8), "rank", tmp_path)
    model = two_maps(8)
    set_execution(model, "auto", tmp_path)
    assert model[0].factors is not None


@pytest.mark.parametrize("options", [{"algebra": "quaternion"}, {"parametrization": "factors"}])
def test_what_has_factors_is_not_searched(tmp_path: Path, searches: list[int], options: dict[str, object]) -> None:
    set_execution(two_maps(**options), "rank", tmp_path)
    assert searches == []


@torch.no_grad()
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):  # root writes everywhere
        folder = tmp_path / "file"
        folder.write_text("")
    x, model = torch.randn(5, 24), two_maps()
    dense = model(x)
    set_execution(model, "rank", folder)
    torch.testing.assert_close(model(x), dense)
    assert not (folder / FILE).exists()


def test_dense_and_factored_want_no_factors(tmp_path: Path, searches: list[int]) -> None:
    for execution in ("dense", "factored"):
        model = two_maps(8)
        set_execution(model, execution, tmp_path)
        assert model[0].execution == execution
    assert searches == []
