import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from phmctl.errors import DimensionError, UserError
from phmctl.nn import structures
from phmctl.nn.layers import LinearBuilder
from phmctl.nn.linear import PHMLinear
from phmctl.nn.lstm import PHMLSTM, LSTMLayer, _in_one_buffer
from tests.references import kronecker_sum_reference

ALGEBRAS = [
    ("phm", 1), ("phm", 2), ("phm", 3), ("phm", 5), ("real", 1), ("complex", 2), ("quaternion", 4), ("octonion", 8),
    ("sedenion", 16),
]  # fmt: skip
CLOSE = {"atol": 1e-10, "rtol": 1e-10}


def double(input_size: int, hidden_size: int, n: int, **options) -> PHMLSTM:
    """A layer in float64 with biases that are not zero."""
    model = PHMLSTM(input_size, hidden_size, n=n, **options).double()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return model


def test_weights_for_cudnn_are_slices_of_one_buffer() -> None:
    """All weights before all biases, each where torch expects it."""
    tensors = [torch.randn(*shape) for shape in ((8, 3), (8, 2), (8,), (8,), (8, 2), (8, 2), (8,), (8,))]
    slices = _in_one_buffer(tensors)
    assert all(torch.equal(part, tensor) for part, tensor in zip(slices, tensors, strict=True))
    offsets = [part.storage_offset() for part in slices]
    assert offsets == [0, 24, 72, 80, 40, 56, 88, 96]
    assert len({part.untyped_storage().data_ptr() for part in slices}) == 1


def normal(*shape: int, grad: bool = True) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def stacked(layer: LSTMLayer) -> tuple[Tensor, Tensor | None, Tensor]:
    """The layer's weights (4h, d), (4h,), (4h, h), from the sum of ``torch.kron``."""
    inputs, hidden = list(layer.from_input.values()), list(layer.from_hidden.values())
    biases = [m.bias for m in inputs if m.bias is not None]
    return torch.cat(list(map(H_of, inputs))), torch.cat(biases) if biases else None, torch.cat(list(map(H_of, hidden)))


def H_of(linear: PHMLinear) -> Tensor:
    return linear.weight if linear.n == 1 else kronecker_sum_reference(linear.A, linear.S)


def run_torch(twin: nn.LSTM, x: Tensor, lengths: Tensor | None, state: tuple[Tensor, Tensor] | None):
    if lengths is None:
        return twin(x, state)
    output, final = twin(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False), state)
    return pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])[0], final


def literal(model: PHMLSTM, x: Tensor, lengths: Tensor, state: tuple[Tensor, Tensor] | None = None):
    """One sequence, one layer and one step at a time, as the equations of §4.1 stand; autograd does the rest."""
    shape = (model.num_layers, len(x), model.hidden_size)
    first = (x.new_zeros(shape), x.new_zeros(shape)) if state is None else state
    output = x.new_zeros(*x.shape[:2], model.hidden_size)
    final = [x.new_zeros(shape), x.new_zeros(shape)]
    for sentence, length in enumerate(lengths.tolist()):
        rows = list(x[sentence, :length])
        for index, layer in enumerate(model.layers):
            from_input, b, from_hidden = stacked(layer)
            h, c = first[0][index, sentence], first[1][index, sentence]
            for t, row in enumerate(rows):
                y = from_input @ row + from_hidden @ h + (0 if b is None else b)
                f, i, o, candidate = y.chunk(4)
                c = f.sigmoid() * c + i.sigmoid() * candidate.tanh()
                h = o.sigmoid() * c.tanh()
                rows[t] = h
            final[0][index, sentence], final[1][index, sentence] = h, c
        output[sentence, :length] = torch.stack(rows)
    return output, tuple(final)


def flat(result) -> tuple[Tensor, Tensor, Tensor]:
    output, (h, c) = result
    return output, h, c


def gradients(outputs, leaves, weights) -> tuple[Tensor, ...]:
    return torch.autograd.grad(outputs, leaves, weights, allow_unused=True, materialize_grads=True)


def assert_alike(result, reference, leaves) -> None:
    """Outputs, states and the gradients of what is wanted are the same."""
    ours, theirs = flat(result), flat(reference)
    weights = [torch.randn_like(value) for value in ours]
    torch.testing.assert_close(ours, theirs, **CLOSE)
    torch.testing.assert_close(gradients(ours, leaves, weights), gradients(theirs, leaves, weights), **CLOSE)


@st.composite
def batches(draw):
    """Sizes, lengths and options of a random case."""
    algebra, n = draw(st.sampled_from(ALGEBRAS))
    steps = draw(st.integers(1, 6))
    lengths = draw(st.none() | st.lists(st.integers(1, steps), min_size=1, max_size=5))
    return {
        "sizes": (n * draw(st.integers(1, 3 if n < 8 else 1)), n * draw(st.integers(1, 3 if n < 8 else 1)), n),
        "algebra": algebra,
        "steps": steps,
        "lengths": None if lengths is None else torch.tensor(lengths),
        "batch": draw(st.integers(1, 4)) if lengths is None else len(lengths),
        "gates": draw(st.sampled_from(["separate", "fused"])),
        "num_layers": draw(st.integers(1, 3)),
        "bias": draw(st.booleans()),
        "state": draw(st.booleans()),
    }


def case(drawn, **options):
    """Model, input, lengths and state of a drawn case."""
    model = double(
        *drawn["sizes"], **{key: drawn[key] for key in ("algebra", "gates", "num_layers", "bias")}, **options
    )
    x = normal(drawn["batch"], drawn["steps"], model.input_size)
    shape = (model.num_layers, drawn["batch"], model.hidden_size)
    return model, x, drawn["lengths"], (normal(*shape), normal(*shape)) if drawn["state"] else None


@given(drawn=batches())
def test_equals_nn_lstm(drawn) -> None:
    """With the weights that it takes from the layer; the equations below check these, and their gradients."""
    model, x, lengths, state = case(drawn)
    twin = model.to_dense()
    assert type(twin) is nn.LSTM
    arguments = (lengths, state) if lengths is not None else (state,)  # the state may stand where nn.LSTM has it
    assert_alike(model(x, *arguments), run_torch(twin, x, lengths, state), (x, *(state or ())))


@given(drawn=batches(), loop=st.booleans())
def test_equals_the_equations(drawn, loop) -> None:
    """With torch's kernel, and with the loop for compilers."""
    model, x, lengths, state = case(drawn)
    real = torch.full((len(x),), x.shape[1]) if lengths is None else lengths
    leaves = (x, *(state or ()), *model.parameters())
    forward = model._loop if loop else model
    assert_alike(forward(x, lengths, state), literal(model, x, real, state), leaves)


@pytest.mark.parametrize("content", [0.0, 7.0, float("nan"), float("inf")])
def test_padding_is_never_read(content) -> None:
    model = double(6, 4, 2, num_layers=2)
    lengths = torch.tensor([2, 5, 1, 5, 3])
    x = normal(5, 5, 6)
    real = torch.arange(5) < lengths[:, None]  # (B, T)
    padded = torch.where(real[:, :, None], x, content).detach().requires_grad_()
    ours, expected = flat(model(padded, lengths)), flat(model(x, lengths))
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)
    assert torch.equal(ours[0][~real], torch.zeros_like(ours[0][~real]))
    assert ours[0][real].abs().min() > 0
    sum(value.square().sum() for value in ours).backward()
    sum(value.square().sum() for value in expected).backward()
    assert torch.equal(padded.grad, x.grad)
    assert torch.equal(x.grad[~real], torch.zeros_like(x.grad[~real]))


def test_h_is_built_once_a_forward(monkeypatch) -> None:
    built, kronecker_sum = [], structures.kronecker_sum
    monkeypatch.setattr(structures, "kronecker_sum", lambda A, S, groups: built.append(1) or kronecker_sum(A, S))
    PHMLSTM(8, 4, n=2)(torch.randn(3, 6, 8))
    assert len(built) == 8  # one a map, whatever the steps


@pytest.mark.parametrize("loop", [False, True])
def test_bfloat16_autocast(loop) -> None:
    torch.manual_seed(0)
    model = PHMLSTM(32, 16, n=4, num_layers=2)
    x, lengths = torch.randn(4, 20, 32, requires_grad=True), torch.tensor([20, 3, 11, 20])
    exact = flat(model(x, lengths))
    exact_gradients = gradients(exact, (x, *model.parameters()), [torch.ones_like(value) for value in exact])
    with torch.autocast("cpu", torch.bfloat16):
        rounded = flat(model._loop(x, lengths, None) if loop else model(x, lengths))
    assert {value.dtype for value in rounded} == {torch.bfloat16}
    for rough, reference in zip(rounded, exact, strict=True):
        assert (rough - reference).norm() < 0.03 * reference.norm()
    rounded_gradients = gradients(rounded, (x, *model.parameters()), [torch.ones_like(value) for value in rounded])
    for rough, reference in zip(rounded_gradients, exact_gradients, strict=True):
        assert rough.dtype == torch.float32
        assert (rough - reference).norm() < 0.03 * reference.norm()


@pytest.mark.parametrize("loop", [False, True])
def test_the_cell_adds_up_small_numbers(loop) -> None:
    """With all gates open the cell is a sum: 1,000 times 0.001. In bfloat16 itself it would stop at 0.5."""
    model = PHMLSTM(2, 2).to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        value = 20.0 if name.endswith("bias") else 0.0
        nn.init.constant_(parameter, 0.001 if name.endswith("candidate.bias") else value)
    with torch.no_grad():
        x = torch.zeros(1, 1000, 2, dtype=torch.bfloat16)
        _, (_, c) = model._loop(x, None, None) if loop else model(x)
    assert c.dtype == torch.bfloat16
    torch.testing.assert_close(c.float(), torch.ones(1, 1, 2), atol=0.01, rtol=0)


@pytest.mark.parametrize(("rules", "expected"), [("separate", 16), ("sublayer", 2), ("model", 1)])
def test_a_models_builder_shares_its_rules(rules, expected) -> None:
    builder = LinearBuilder("phm", 2, rules=rules, bias=False)
    model = PHMLSTM(4, 4, num_layers=2, builder=builder)
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    assert len({id(value) for name, value in model.named_parameters() if name.endswith(".A")}) == expected
    assert not any(name.endswith("bias") for name in names)


@pytest.mark.parametrize("gates", ["separate", "fused"])
def test_gates_begin_with_the_same_variance(gates) -> None:
    """A fused map's fan-out is that of one gate, so both forms begin alike: 2/(d + h), Xavier's."""
    torch.manual_seed(0)
    for n in (1, 5):
        weight = stacked(PHMLSTM(200, 100, n=n, gates=gates).layers[0])[0]
        for gate in weight.chunk(4):
            assert gate.var().item() == pytest.approx(2 / 300, rel=0.1)


X, STATE = torch.randn(3, 5, 4), torch.zeros(2, 3, 2)


@pytest.mark.parametrize(
    "inputs",
    [
        *[(X, torch.tensor(wrong)) for wrong in ([3, 0, 1], [3, 5, 6], [3, 5], [[3], [5], [1]], [3.0, 5.0, 1.0])],
        *[(torch.randn(*shape),) for shape in ((3, 5, 6), (5, 4), (0, 5, 4), (3, 0, 4))],
        (X, None, (STATE, STATE[:1])),
    ],
)
def test_wrong_inputs(inputs) -> None:
    with pytest.raises(DimensionError):
        PHMLSTM(4, 2, n=2, num_layers=2)(*inputs)


def test_lengths_may_be_a_list() -> None:
    model = PHMLSTM(4, 2, n=2)
    assert torch.equal(model(X, [3, 5, 1])[0], model(X, torch.tensor([3, 5, 1]))[0])


@pytest.mark.parametrize("wrong", [{"n": 3}, {"algebra": "octonion"}, {"gates": "x"}, {"num_layers": 0}])
def test_impossible_lstms_are_refused(wrong) -> None:
    with pytest.raises(UserError):
        PHMLSTM(4, 4, **wrong)
