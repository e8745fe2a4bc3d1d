"""The rules that a run has learned: each as a picture, beside the known algebra that it is nearest to."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phmctl.algebra.alignment import NearestAlgebra, Spectra, chance_distance, nearest_known, spectra
from phmctl.checkpoints import read_checkpoint
from phmctl.comparison.variants import Trained, Variant
from phmctl.console import Table
from phmctl.reports import plots
from phmctl.reports.plots import Blocks, Picture, plural, to_svg

if TYPE_CHECKING:
    from torch import Tensor

_MOST = 160  # rules that are drawn; the table has all
_NARROW = 5  # matrices that a narrow tile shows well


@dataclass(frozen=True)
class Learned:
    """A rule and the components of the first map that holds it."""

    name: str  # of the map
    A: "Tensor"  # (n, n, n), (n, k/n, d/n)
    S: "Tensor"
    nearest: NearestAlgebra  # the known algebra nearest to A
    spectra: Spectra  # of A and S

    @property
    def terms(self) -> float:
        """How many terms are in use: the exponential of the entropy of the terms' shares (Roy and Vetterli 2007)."""
        shares = [each**2 for each in self.spectra.terms if each > 1e-12]
        return math.exp(-math.fsum(each * math.log(each) for each in shares))


def learned_rules(one: Trained) -> list[Learned]:
    """The rules in a run's checkpoint: that which was scored, else the best, else the last."""
    names = one.run.checkpoint_names()
    wanted = one.result.checkpoint if one.result is not None else ""
    name = next((each for each in (wanted, "best", "last") if each in names), None)
    if name is None:
        return []
    tensors = read_checkpoint(one.run.checkpoint(name), ["model"]).tensors["model"]
    return [Learned(place, A, S, nearest_known(A), spectra(A, S)) for place, A, S in _rules(tensors)]


def _rules(tensors: "Mapping[str, Tensor]") -> "Iterator[tuple[str, Tensor, Tensor]]":
    """Each rule with the map that holds it and the map's components; factors are multiplied out."""
    from phmctl.algebra.bilinear import Factors, recompose

    for name, S in tensors.items():
        place, dot, last = name.rpartition(".")
        if last != "S":
            continue
        factors = [tensors.get(f"{place}{dot}{each}") for each in "WUV"]
        A = tensors.get(f"{place}{dot}A")
        if A is None and all(each is not None for each in factors):
            A = recompose(Factors(*(each for each in factors if each is not None)))
        if A is not None and len(A) > 1:
            yield place or "the map", A, S


def rules_part(variant: Variant, key: str) -> Blocks:
    """What a variant's first run has learned; nothing where it has no learned rule."""
    one = next(iter(variant.scored or variant.runs))
    found = learned_rules(one)
    if not found:
        return []
    orders = {len(each.A) for each in found}
    n = max(orders, key=lambda order: sum(len(each.A) == order for each in found))
    usual = [each for each in found if len(each.A) == n]
    chance = chance_distance(n)
    near = sum(each.nearest.distance < chance for each in usual)
    summary = (
        f"Nearer to a known algebra than 19 of 20 random rules are (distance below {chance:.2f}): {near} of "
        f"{plural(len(usual), 'rule')}; one in twenty would be by chance."
    )
    return [
        ("heading", f"{variant.label}, seed {one.seed}: {plural(len(found), 'rule')}, n = {n}"),
        ("text", summary),
        ("grid", _overview(usual, chance, key)),
        ("details", (f"all as a table ({plural(len(found), 'rule')})", [("table", _rule_table(found))])),
        ("details", ("the matrices A₁ … Aₙ of each rule", _tiles(found, key))),
    ]


def _overview(found: list[Learned], chance: float, key: str) -> list[Picture]:
    by_name = {each.name: each for each in found}
    nearest = ", ".join(f"{name} {one.nearest.distance:.2f} ({one.nearest.name})" for name, one in by_name.items())
    far = plots.distances({name: one.nearest.distance for name, one in by_name.items()}, chance)
    values = plots.spectra({name: one.spectra for name, one in by_name.items()})
    return [
        Picture(
            to_svg(far, f"{key}-far"),
            f"Distances to the nearest known algebra: {nearest}",
            "How far each learned rule is from the nearest known algebra, after the change of basis that is free.",
        ),
        Picture(
            to_svg(values, f"{key}-spectra"),
            "Singular values of each map's terms, outputs and inputs; the table has how many terms are in use.",
            "Singular values that no basis changes, largest first: a line a map, and their mean. Left: how much of H "
            "each of the n terms carries. Middle, right: how evenly the rule uses outputs and inputs. Dashed: all "
            "alike.",
        ),
    ]


def _rule_table(found: list[Learned]) -> Table:
    rows = [
        [
            each.name,
            "×".join(str(size * len(each.A)) for size in each.S.shape[1:]),
            each.nearest.name,
            f"{each.nearest.distance:.3f}",
            f"{each.terms:.2f} of {len(each.A)}",
            " ".join(f"{value:.2f}" for value in each.spectra.terms[:8]) + (" …" if len(each.A) > 8 else ""),
        ]
        for each in found
    ]
    head = ["map", "k×d", "nearest algebra", "distance", "terms in use", "singular values of the terms"]
    return Table("learned rules", head, rows, text=(2,))


def _tiles(found: list[Learned], key: str) -> Blocks:
    tiles = []
    for index, each in enumerate(found[:_MOST]):
        near = each.nearest
        svg = to_svg(plots.heat(each.A, near.aligned, near.rule), f"{key}-{index}")
        largest = float(each.A.abs().max())
        words = f"The {len(each.A)} matrices of {each.name}; largest entry {largest:.2f}; nearest algebra {near.name}"
        tiles.append(Picture(svg, words, f"{each.name}: {near.name} at {near.distance:.2f}"))
    words = (
        "Each tile: the matrices as they were learned (A), in the basis nearest to the known algebra (P·A), and that "
        "algebra (A*); of more than eight matrices, A alone. Blue is positive, red negative; the stronger, the larger "
        "beside the largest of its line."
    )
    kind = "tiles wide" if any(len(each.A) > _NARROW for each in found) else "tiles"
    more = [("text", f"… and {len(found) - _MOST} more")] if len(found) > _MOST else []
    return [("text", words), (kind, tiles), *more]
