import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phmctl.algebra.dimension import FIXED_DIMENSION
from phmctl.algebra.kronecker import fixed_rule
from phmctl.errors import UserError
from tests.references import multiply

# e_i e_j of the octonions by Cayley–Dickson doubling of 1, i, j, k: sign and index, for row i and column j.
OCTONIONS = """
+0 +1 +2 +3 +4 +5 +6 +7
+1 -0 +3 -2 +5 -4 -7 +6
+2 -3 -0 +1 +6 +7 -4 -5
+3 +2 -1 -0 +7 -6 +5 -4
+4 -5 -6 -7 -0 +1 +2 +3
+5 +4 -7 +6 -1 -0 -3 +2
+6 +7 +4 -5 -2 +3 -0 -1
+7 -6 +5 +4 -3 -2 +1 -0
"""


def numbers(n: int) -> st.SearchStrategy[torch.Tensor]:
    entries = st.floats(-4, 4, width=32)
    return st.lists(entries, min_size=n, max_size=n).map(lambda x: torch.tensor(x, dtype=torch.float64))


def rule(algebra: str) -> torch.Tensor:
    return fixed_rule(algebra, dtype=torch.float64)


def test_quaternion_rule_is_the_hamilton_matrix() -> None:
    r, x, y, z = 2.0, 3.0, 5.0, 7.0
    hamilton = [[r, -x, -y, -z], [x, r, -z, y], [y, z, r, -x], [z, -y, x, r]]  # eq. 3.4
    H = torch.einsum("iab,i->ab", fixed_rule("quaternion"), torch.tensor([r, x, y, z]))
    assert H.tolist() == hamilton


def test_octonion_product_follows_the_table() -> None:
    table = [row.split() for row in OCTONIONS.split("\n") if row]
    basis = torch.eye(8)
    for i, j in itertools.product(range(8), repeat=2):
        sign, index = (1 if table[i][j][0] == "+" else -1), int(table[i][j][1])
        expected = sign * basis[index]
        assert multiply(fixed_rule("octonion"), basis[i], basis[j]).tolist() == expected.tolist(), (i, j)


@pytest.mark.parametrize("algebra", ["real", "complex", "quaternion", "octonion"])
@given(data=st.data())
def test_norms_are_multiplicative_up_to_the_octonions(algebra: str, data: st.DataObject) -> None:
    n = FIXED_DIMENSION[algebra]
    p, q = data.draw(numbers(n)), data.draw(numbers(n))
    torch.testing.assert_close(multiply(rule(algebra), p, q).norm(), p.norm() * q.norm())


def test_sedenions_have_zero_divisors() -> None:
    basis = torch.eye(16)
    pairs = itertools.combinations(range(1, 16), 2)
    sums = torch.stack([basis[i] + sign * basis[j] for i, j in pairs for sign in (1, -1)])
    products = multiply(fixed_rule("sedenion"), sums[:, None], sums[None])  # (p, q, 16)
    assert (products == 0).all(dim=-1).any()
    assert (multiply(fixed_rule("octonion"), torch.ones(8), torch.ones(8)) != 0).any()


@pytest.mark.parametrize("algebra", list(FIXED_DIMENSION))
def test_rows_of_a_fixed_rule_are_signed_permutations(algebra: str) -> None:
    A = fixed_rule(algebra)
    assert A.shape == (FIXED_DIMENSION[algebra],) * 3
    assert set(A.unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert (A.square().sum(dim=0) == 1).all()  # a single component at each entry of H
    assert (A.square().sum(dim=2) == 1).all()  # each component once in each row
    x = torch.randn(len(A))
    assert torch.equal(multiply(A, torch.eye(len(A))[0], x), x)
    with pytest.raises(UserError, match=f"'{algebra}'"):
        fixed_rule(f"{algebra}s")
