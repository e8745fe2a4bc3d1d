import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from phmctl.errors import DimensionError, UserError
from phmctl.nn import linear
from phmctl.nn.build import LinearBuilder
from phmctl.nn.linear import PHMLinear
from phmctl.nn.lstm import GATES, PHMLSTM, LSTMLayer
from tests.references import kronecker_sum_reference

ALGEBRAS = [
    ("phm", 1), ("phm", 2), ("phm", 3), ("phm", 5), ("real", 1), ("complex", 2), ("quaternion", 4), ("octonion", 8),
    ("sedenion", 16),
]  # fmt: skip
TORCH_ORDER = [1, 0, 3, 2]  # nn.LSTM has i, f, g, o; the paper f, i, o, x′. Its own inverse.
CLOSE = {"atol": 1e-10, "rtol": 1e-10}


def double(input_size: int, hidden_size: int, n: int, **options) -> PHMLSTM:
    """A layer in float64 with biases that are not zero."""
    model = PHMLSTM(input_size, hidden_size, n=n, **options).double()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return model


def normal(*shape: int, grad: bool = True) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def stacked(layer: LSTMLayer) -> tuple[Tensor, Tensor | None, Tensor]:
    """The layer's weights (4h, d), (4h,), (4h, h), from the sum of ``torch.kron``."""
    inputs, hidden = list(layer.from_input.values()), list(layer.from_hidden.values())
    biases = [m.bias for m in inputs if m.bias is not None]
    return torch.cat(list(map(H_of, inputs))), torch.cat(biases) if biases else None, torch.cat(list(map(H_of, hidden)))


def H_of(linear: PHMLinear) -> Tensor:
    return linear.weight if linear.n == 1 else kronecker_sum_reference(linear.A, linear.S)


def in_torch_order(rows: Tensor) -> Tensor:
    return torch.cat([rows.chunk(4)[i] for i in TORCH_ORDER])


def torch_lstm(model: PHMLSTM) -> nn.LSTM:
    """An ``nn.LSTM`` with the materialised weights copied in."""
    bias = stacked(model.layers[0])[1] is not None
    twin = nn.LSTM(model.input_size, model.hidden_size, model.num_layers, bias, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for index, layer in enumerate(model.layers):
            from_input, b, from_hidden = stacked(layer)
            getattr(twin, f"weight_ih_l{index}").copy_(in_torch_order(from_input))
            getattr(twin, f"weight_hh_l{index}").copy_(in_torch_order(from_hidden))
            if b is not None:
                getattr(twin, f"bias_ih_l{index}").copy_(in_torch_order(b))
                getattr(twin, f"bias_hh_l{index}").zero_()
    return twin


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
                h = o * c if model.cell == "as_printed" else o.sigmoid() * c.tanh()
                rows[t] = h
            final[0][index, sentence], final[1][index, sentence] = h, c
        output[sentence, :length] = torch.stack(rows)
    return output, tuple(final)


def flat(result) -> tuple[Tensor, Tensor, Tensor]:
    output, (h, c) = result
    return output, h, c


def gradients(outputs, wanted, weights) -> tuple[Tensor, ...]:
    return torch.autograd.grad(outputs, wanted, weights, allow_unused=True, materialize_grads=True)


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


def taken_back(model: PHMLSTM, dense: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """From gradients of ``nn.LSTM``'s weights those of A, S and b, through the sum of ``torch.kron``."""
    roots, weights = [], []
    for index, layer in enumerate(model.layers):
        for root, name in zip(stacked(layer), ("weight_ih", "bias_ih", "weight_hh"), strict=True):
            if root is not None:
                roots.append(root)
                weights.append(in_torch_order(dense[f"{name}_l{index}"]))
    return gradients(roots, list(model.parameters()), weights)


@given(drawn=batches())
@settings(max_examples=60, deadline=None)
def test_equals_nn_lstm(drawn) -> None:
    model, x, lengths, state = case(drawn)
    twin = torch_lstm(model)
    ours, theirs = flat(model(x, lengths, state)), flat(run_torch(twin, x, lengths, state))
    weights = [torch.randn_like(value) for value in ours]
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)

    leaves = (x, *(state or ()))
    found = gradients(ours, (*leaves, *model.parameters()), weights)
    expected = gradients(theirs, (*leaves, *twin.parameters()), weights)
    for mine, other in zip(found[: len(leaves)], expected[: len(leaves)], strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)
    dense = dict(zip(dict(twin.named_parameters()), expected[len(leaves) :], strict=True))
    for mine, other in zip(found[len(leaves) :], taken_back(model, dense), strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)


@given(drawn=batches(), cell=st.sampled_from(["standard", "as_printed"]))
@settings(max_examples=40, deadline=None)
def test_equals_the_equations(drawn, cell) -> None:
    model, x, lengths, state = case(drawn, cell=cell)
    real = torch.full((len(x),), x.shape[1]) if lengths is None else lengths
    ours, theirs = flat(model(x, lengths, state)), flat(literal(model, x, real, state))
    weights = [torch.randn_like(value) for value in ours]
    wanted = (x, *(state or ()), *model.parameters())
    pairs = [*zip(ours, theirs, strict=True)]
    pairs += zip(gradients(ours, wanted, weights), gradients(theirs, wanted, weights), strict=True)
    for mine, other in pairs:
        torch.testing.assert_close(mine, other, **CLOSE)


@pytest.mark.parametrize("wanted", ["input", "weights", "bias", "state"])
def test_gradients_of_what_wants_them(wanted) -> None:
    """Frozen embeddings ask for no gradient of the input, a frozen encoder for none of its weights."""
    model = double(4, 4, 2)
    x, state = normal(2, 3, 4), (normal(1, 2, 4), normal(1, 2, 4))
    model(x, None, state)[0].sum().backward()
    groups = {
        "input": [x],
        "weights": [p for name, p in model.named_parameters() if not name.endswith("bias")],
        "bias": [p for name, p in model.named_parameters() if name.endswith("bias")],
        "state": [*state],
    }
    expected = [leaf.grad.clone() for leaf in groups[wanted]]
    for name, leaves in groups.items():
        for leaf in leaves:
            leaf.grad = None
            leaf.requires_grad_(name == wanted)
    model(x, None, state)[0].sum().backward()
    for leaf, gradient in zip(groups[wanted], expected, strict=True):
        torch.testing.assert_close(leaf.grad, gradient, **CLOSE)
    assert all(leaf.grad is None for name, leaves in groups.items() if name != wanted for leaf in leaves)


@pytest.mark.parametrize("content", [0.0, 7.0, float("nan"), float("inf")])
def test_padding_is_never_read(content) -> None:
    model = double(6, 4, 2, num_layers=2)
    lengths = torch.tensor([2, 5, 1, 5, 3])
    x = normal(5, 5, 6)
    real = torch.arange(5) < lengths[:, None]  # (B, T)
    padded = torch.where(real[:, :, None], x, content).detach().requires_grad_()
    ours, expected = flat(model(padded, lengths)), flat(model(x, lengths))
    for mine, other in zip(ours, expected, strict=True):
        assert torch.equal(mine, other)
    assert torch.equal(ours[0][~real], torch.zeros_like(ours[0][~real]))
    assert ours[0][real].abs().min() > 0
    sum(value.square().sum() for value in ours).backward()
    sum(value.square().sum() for value in expected).backward()
    assert torch.equal(padded.grad, x.grad)
    assert torch.equal(x.grad[~real], torch.zeros_like(x.grad[~real]))


def test_a_sequence_does_not_depend_on_its_neighbours() -> None:
    model = double(6, 4, 2, num_layers=2)
    lengths = torch.tensor([3, 1, 4, 4, 2])
    x = normal(5, 4, 6)
    output, (h, c) = model(x, lengths)
    for i, length in enumerate(lengths.tolist()):
        alone, (h_alone, c_alone) = model(x[i : i + 1, :length])
        torch.testing.assert_close(output[i, :length], alone[0], **CLOSE)
        torch.testing.assert_close(
            torch.stack([h[:, i], c[:, i]]), torch.stack([h_alone[:, 0], c_alone[:, 0]]), **CLOSE
        )


def test_goes_on_from_a_state() -> None:
    model = double(6, 4, 2, num_layers=2)
    x = normal(3, 7, 6)
    whole, final = model(x)
    first, state = model(x[:, :3])
    second, end = model(x[:, 3:], None, state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, **CLOSE)
    torch.testing.assert_close(end, final, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_lengths_of_any_integer_type(dtype) -> None:
    model = double(4, 4, 2)
    x = normal(2, 5, 4)
    lengths = torch.tensor([4, 5])
    assert torch.equal(model(x, lengths.to(dtype))[0], model(x, lengths)[0])


@pytest.mark.parametrize("place", [0, 1, 2])
def test_twice_in_one_graph(place) -> None:
    """Premise and hypothesis go through one encoder; and a graph that is kept gives the same gradients again."""
    model = double(4, 4, 2)
    x, y = normal(3, 5, 4), normal(3, 4, 4)
    lengths = torch.tensor([1, 4, 2])

    def loss(value: Tensor, sizes: Tensor | None) -> Tensor:
        return flat(model(value, sizes))[place].square().sum()

    parameters = list(model.parameters())
    apart = [torch.autograd.grad(loss(*arguments), parameters) for arguments in [(x, None), (y, lengths)]]
    together = loss(x, None) + loss(y, lengths)
    for retain in (True, False):
        found = torch.autograd.grad(together, parameters, retain_graph=retain)
        for mine, one, other in zip(found, *apart, strict=True):
            torch.testing.assert_close(mine, one + other, **CLOSE)


def test_h_is_built_once_a_forward(monkeypatch) -> None:
    built, kronecker_sum = [], linear.kronecker_sum
    monkeypatch.setattr(linear, "kronecker_sum", lambda A, S: built.append(1) or kronecker_sum(A, S))
    PHMLSTM(8, 4, n=2)(torch.randn(3, 6, 8))
    assert len(built) == 8  # one a map, whatever the steps


def test_an_activation_in_place_behind_it() -> None:
    model = double(4, 4, 2)
    model(normal(2, 3, 4))[0].relu_().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_without_gradients_and_after_a_step() -> None:
    model = PHMLSTM(8, 4, n=4, algebra="quaternion")
    x, lengths = torch.randn(3, 6, 8), torch.tensor([2, 6, 3])
    expected = flat(model(x, lengths))
    model.eval()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            found = flat(model(x, lengths))
            assert not any(value.requires_grad for value in found)
            torch.testing.assert_close(found, tuple(value.detach() for value in expected))
    model.train()(x, lengths)[0].sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert (model.eval()(x, lengths)[0] - found[0]).abs().max() > 1e-3


@pytest.mark.parametrize(("cell", "tolerance"), [("standard", 0.03), ("as_printed", 0.08)])
def test_bfloat16_autocast(cell, tolerance) -> None:
    """The printed cell squashes less, and so carries rounding further; autograd through its loop strays as much."""
    torch.manual_seed(0)
    model = PHMLSTM(32, 16, n=4, num_layers=2, cell=cell)
    x, lengths = torch.randn(4, 20, 32, requires_grad=True), torch.tensor([20, 3, 11, 20])
    exact = flat(model(x, lengths))
    exact_gradients = gradients(exact, (x, *model.parameters()), [torch.ones_like(value) for value in exact])
    with torch.autocast("cpu", torch.bfloat16):
        found = flat(model(x, lengths))
    assert {value.dtype for value in found} == {torch.bfloat16}
    for mine, other in zip(found, exact, strict=True):
        assert (mine - other).norm() < tolerance * other.norm()
    found_gradients = gradients(found, (x, *model.parameters()), [torch.ones_like(value) for value in found])
    for mine, other in zip(found_gradients, exact_gradients, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - other).norm() < tolerance * other.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_a_shorter_precision(dtype) -> None:
    model = PHMLSTM(8, 8, n=4).to(dtype)
    output, (h, c) = model(torch.randn(2, 5, 8, dtype=dtype))
    assert {output.dtype, h.dtype, c.dtype} == {dtype}
    (output.sum() + c.sum()).backward()
    assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in model.parameters())


def test_the_cell_adds_up_small_numbers() -> None:
    """With all gates open the cell is a sum: 1,000 times 0.001. In bfloat16 itself it would stop at 0.5."""
    model = PHMLSTM(2, 2).to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        value = 20.0 if name.endswith("bias") else 0.0
        nn.init.constant_(parameter, 0.001 if name.endswith("candidate.bias") else value)
    with torch.no_grad():
        _, (_, c) = model(torch.zeros(1, 1000, 2, dtype=torch.bfloat16))
    torch.testing.assert_close(c.float(), torch.ones(1, 1, 2), atol=0.01, rtol=0)


@pytest.mark.parametrize(
    ("algebra", "n", "gates", "bias", "expected"),
    [
        ("real", 1, "separate", True, 721_200),  # Table 1: 721K
        ("real", 1, "fused", True, 721_200),
        ("quaternion", 4, "separate", False, 180_000),  # 180K: without the bias; with it 181,200
        ("quaternion", 4, "separate", True, 181_200),
        ("quaternion", 4, "fused", False, 180_000),
        ("phm", 2, "separate", True, 361_264),  # 361K
        ("phm", 5, "separate", True, 146_200),  # 146K
        ("phm", 10, "separate", True, 81_200),  # 81K
        ("phm", 5, "fused", True, 145_450),  # the form that the equation prints: 145K, not 146K
        ("phm", 10, "fused", True, 75_200),  # 75K, not 81K
    ],
)
def test_the_counts_of_table_1(algebra, n, gates, bias, expected) -> None:
    model = PHMLSTM(300, 300, n=n, algebra=algebra, gates=gates, bias=bias, device="meta")
    assert all(parameter.is_meta for parameter in model.parameters())
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    rules = {id(value) for name, value in model.named_parameters() if name.endswith(".A")}
    assert len(rules) == (0 if algebra != "phm" else {"separate": 8, "fused": 2}[gates])


def test_the_maps_have_names() -> None:
    separate, fused = PHMLSTM(4, 2, n=2).layers[0], PHMLSTM(4, 2, n=2, gates="fused").layers[0]
    assert tuple(separate.from_input) == tuple(separate.from_hidden) == GATES
    assert [m.weight.shape for m in separate.from_input.values()] == [(2, 4)] * 4
    assert [m.weight.shape for m in (*fused.from_input.values(), *fused.from_hidden.values())] == [(8, 4), (8, 2)]


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


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3, 0, 1], r"lengths\[1\] = 0; a length is at least 1 and at most T = 5 steps"),
        ([3, 5, 6], r"lengths\[2\] = 6;"),
        ([-1, 5, 9], r"lengths\[0\] = -1;"),
        ([3, 5], r"int64 of shape \(2,\); give one integer for each of the 3 sequences"),
        ([[3], [5], [1]], r"int64 of shape \(3, 1\)"),
        ([3.0, 5.0, 1.0], "float32"),
        ([True, True, True], "bool"),
    ],
)
def test_wrong_lengths(lengths, message) -> None:
    with pytest.raises(DimensionError, match=message):
        PHMLSTM(4, 2, n=2)(torch.randn(3, 5, 4), torch.tensor(lengths))


@pytest.mark.parametrize("shape", [(3, 5, 6), (4,), (0, 5, 4), (3, 0, 4)])
def test_wrong_inputs(shape) -> None:
    with pytest.raises(DimensionError):
        PHMLSTM(4, 2, n=2)(torch.randn(*shape))


def test_wrong_states() -> None:
    good, bad = torch.zeros(2, 3, 2), torch.zeros(1, 3, 2)
    model = PHMLSTM(4, 2, n=2, num_layers=2)
    with pytest.raises(DimensionError, match=r"state c .*\(1, 3, 2\).*\(2, 3, 2"):
        model(torch.randn(3, 5, 4), None, (good, bad))
    with pytest.raises(DimensionError, match="state h"):
        model(torch.randn(3, 5, 4), None, (bad, good))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"n": 3}, DimensionError, "n = 3"),
        ({"n": 2, "algebra": "quaternion"}, DimensionError, "n = 4"),
        ({"n": 2, "gates": "seperate"}, UserError, "'separate'"),
        ({"n": 2, "cell": "printed"}, UserError, "as_printed"),
        ({"n": 2, "num_layers": 0}, DimensionError, "num_layers = 0"),
    ],
)
def test_what_a_user_can_get_wrong(options, error, words) -> None:
    with pytest.raises(error, match=words):
        PHMLSTM(4, 4, **options)


def test_shows_its_arguments() -> None:
    assert repr(PHMLSTM(4, 2, n=2, cell="as_printed")).startswith(
        "PHMLSTM(\n  4, 2, gates='separate', cell='as_printed'\n  (layers): ModuleList("
    )


def test_the_meta_device_gives_the_shapes() -> None:
    model = PHMLSTM(8, 12, n=4, num_layers=2, device="meta")
    x = torch.empty(2, 5, 8, device="meta", requires_grad=True)
    output, (h, c) = model(x)
    output.sum().backward()
    assert (output.shape, h.shape, c.shape) == ((2, 5, 12), (2, 2, 12), (2, 2, 12))
    assert x.grad is not None


# --- what nn.LSTM takes besides a batch


def pair() -> tuple[PHMLSTM, nn.LSTM]:
    model = double(4, 6, 2, num_layers=2)
    return model, model.to_dense()


def start(*batch: int) -> tuple[Tensor, Tensor]:
    return normal(2, *batch, 6, grad=False), normal(2, *batch, 6, grad=False)


def packed(*lengths: int, width: int = 4) -> PackedSequence:
    return pack_sequence([normal(length, width, grad=False) for length in lengths], enforce_sorted=False)


@pytest.mark.parametrize("state", [None, start(3)])
def test_a_packed_sequence(state: tuple[Tensor, Tensor] | None) -> None:
    x, found = packed(2, 5, 3), []
    for layer in pair():
        rows = x.data.clone().requires_grad_()
        output, final = layer(x._replace(data=rows), state)
        assert isinstance(output, PackedSequence)
        found.append((*output, *final, torch.autograd.grad(output.data.square().sum(), rows)[0]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("state", [None, start()])
def test_one_sequence_without_a_batch(state: tuple[Tensor, Tensor] | None) -> None:
    (model, twin), x = pair(), normal(5, 4)
    for one, other in zip(flat(model(x, state)), flat(twin(x, state)), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)
    assert torch.equal(model(x, hx=state)[0], model(x, state)[0])  # by its name or in its place


def test_models_may_flatten_its_parameters() -> None:
    model, _ = pair()
    before = {name: part.clone() for name, part in model.state_dict().items()}
    model.flatten_parameters()
    torch.testing.assert_close(dict(model.state_dict()), before)


def test_what_a_packed_sequence_cannot_have() -> None:
    model, _ = pair()
    with pytest.raises(DimensionError, match="input of shape"):
        model(packed(3, 1, width=5))
    with pytest.raises(DimensionError, match="state h has shape"):
        model(packed(3, 1), start(4))
    with pytest.raises(UserError, match="has its lengths"):
        model(packed(3, 1), torch.tensor([3, 1]))
    with pytest.raises(UserError, match="cannot be compiled"):
        torch.func.grad(lambda h: model(packed(3, 1), (h, h))[0].data.sum())(start(2)[0])
