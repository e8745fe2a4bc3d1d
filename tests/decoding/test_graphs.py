"""Steps of a fixed shape find what others find. On a CPU they run unrecorded; test_cuda.py records them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import phmctl
from phmctl.backends import choices
from phmctl.decoding import graphs
from phmctl.decoding.beam import beam_search
from phmctl.decoding.graphs import Graphed
from phmctl.decoding.hypothesis import Hypothesis
from phmctl.decoding.torch_engine import TorchEngine
from phmctl.models.static_state import Shape
from phmctl.models.transformer import Transformer
from phmctl.nn.caching import values_of
from phmctl.recipe.schema import DecodingSection
from tests.decoding.conftest import TEXT, Kit, sharp_model

PHM: dict[str, Any] = {"algebra": "phm", "n": 4}
VARIANTS = [
    {},
    PHM,
    PHM | {"projections": "packed"},
    {"compose_layers": "bilinear", "compose_heads": "bilinear", "encoder_layers": 2},
]


def drawn(rows: int, length: int, seed: int = 1) -> torch.Tensor:
    source = torch.randint(4, 40, (rows, length), generator=torch.Generator().manual_seed(seed))
    source[: rows // 2, length // 2 :] = 0
    return source


def searched(model: Any, source: torch.Tensor, beam: int, lengths: list[int]) -> list[list[Hypothesis]]:
    return beam_search(model, source, beam=beam, alpha=0.6, max_lengths=lengths, allowed=38, n_best=beam)


def check(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[h.tokens for h in each] for each in found] == [[h.tokens for h in each] for each in expected]
    scores = [h.score for each in expected for h in each]
    assert [h.score for each in found for h in each] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("variant", range(len(VARIANTS)))
def test_hypotheses_are_the_same(variant: int, beam: int) -> None:
    model = sharp_model(40, **VARIANTS[variant])
    source, lengths = drawn(5, 18), [9, 3, 70, 0, 40]  # more than 32 and 64 positions
    graphed = Graphed(model)
    check(searched(graphed, source, beam, lengths), searched(model, source, beam, lengths))


@pytest.fixture(scope="module")
def model() -> Transformer:
    return sharp_model(40, **PHM)


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    width=st.integers(2, 20),
    beam=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
@settings(max_examples=15, deadline=None)
def test_of_any_shape(model: Transformer, lengths: list[int], width: int, beam: int, seed: int) -> None:
    source = drawn(len(lengths), width, seed)
    with phmctl.cached():
        for _ in range(2):  # the second search takes the steps of the first
            graphed = Graphed(model)
            found = searched(graphed, source, beam, lengths)
            graphed.release()
            check(found, searched(model, source, beam, lengths))


def test_a_step_is_made_once_a_shape_and_ends_with_the_scope(model: Transformer) -> None:
    engine = TorchEngine(model, torch.device("cpu"))
    assert not engine.graphed  # on a CPU there is nothing to gain
    engine.graphed = True
    settings = DecodingSection(beam=2, max_extra=40, max_ratio=1.0)
    sources = [[5, 6, 7, 2], [8, 9, 2]]
    with engine.ready():
        held = values_of(model)
        assert held is not None
        for _ in range(3):
            engine.search(sources, settings, allowed=38)
        shapes = held["steps"]
        assert set(shapes) <= {Shape(2, 2, 16, 32), Shape(1, 2, 16, 32), Shape(2, 2, 16, 64), Shape(1, 2, 16, 64)}
        assert all(len(steps) == 1 for steps in shapes.values())
        assert shapes
    with engine.ready():
        assert "steps" not in (values_of(model) or {})


def test_what_is_not_finite_does_not_stay(model: Transformer) -> None:
    source, lengths = drawn(3, 9), [6, 6, 6]
    with phmctl.cached():
        graphed = Graphed(model)
        first = searched(graphed, source, 3, lengths)
        graphed.release()
        for steps in (values_of(model) or {})["steps"].values():
            steps[0].state.past.fill_(float("nan"))
            for layer in steps[0].state.layers:
                layer.memory_keys.fill_(float("nan"))
        check(searched(Graphed(model), source, 3, lengths), first)


@pytest.mark.parametrize("modes", [(True, False), (False, True)])
def test_a_step_is_taken_in_inference_mode_and_outside(model: Transformer, modes: tuple[bool, bool]) -> None:
    source, lengths = drawn(3, 9), [6, 6, 6]
    expected = searched(model, source, 3, lengths)
    with phmctl.cached():
        for mode in modes:
            graphed = Graphed(model)
            with torch.inference_mode(mode):
                check(searched(graphed, source, 3, lengths), expected)
            graphed.release()


def test_the_last_step_may_be_taken_between_two_looks(model: Transformer) -> None:
    class Taken(list[Any]):
        def __bool__(self) -> bool:
            return True

    source, lengths = drawn(3, 9), [6, 6, 6]
    with phmctl.cached():
        held = values_of(model)
        assert held is not None
        held["steps"] = {Shape(4, 3, 16, 32): Taken()}
        check(searched(Graphed(model), source, 3, lengths), searched(model, source, 3, lengths))


def test_a_step_is_recorded_on_a_stream_of_its_gpu_and_by_one_thread_at_a_time(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stream:
        def __init__(self, device: object = None) -> None:
            self.device = device

        def wait_stream(self, other: object) -> None:
            assert not choices.alone.locked()  # steps before may measure

    current, graph, recorded = [Stream()], object(), []

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    @contextmanager
    def recording(found: object, stream: Stream | None = None, capture_error_mode: str = "global") -> Iterator[None]:
        recorded.append((found, stream and stream.device, choices.alone.locked(), capture_error_mode))
        yield

    for name, fake in {"Stream": Stream, "stream": on, "graph": recording, "CUDAGraph": lambda: graph}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[-1])
    graphs._streams.cache_clear()
    with torch.no_grad(), phmctl.cached():
        state = model.start(model.encode(drawn(2, 9)), 2, 8)
        graphs._Step(model, state, Shape.around(state))._recorded()
    graphs._streams.cache_clear()
    assert recorded == [(graph, torch.device("cpu"), True, "thread_local")]


def test_what_cannot_be_recorded_runs_as_it_stands(
    model: Transformer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stream:
        def wait_stream(self, other: object) -> None:
            pass

    @contextmanager
    def refusing(*_: object, **__: object) -> Iterator[None]:
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "_streams", lambda _: (Stream(), Stream()))
    for name, fake in {"stream": nullcontext, "graph": refusing, "CUDAGraph": object, "current_stream": Stream}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    with torch.no_grad(), phmctl.cached():
        state = model.start(model.encode(drawn(2, 9)), 2, 8)
        step = graphs._Step(model, state, Shape.around(state))
        run = step._recorded()
        step.state.load(state)
        state.beams = 1
        found, expected = run(), model.step(step._tokens[:, :1], model.start(model.encode(drawn(2, 9)), 1, 8))
    torch.testing.assert_close(found[:, :1], expected)
    assert "not permitted when stream is capturing" in capsys.readouterr().err


def test_so_many_shapes_are_kept(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_MOST", 2)
    with phmctl.cached():
        for beam in (1, 2, 3, 2, 4):
            graphed = Graphed(model)
            searched(graphed, drawn(2, 9), beam, [6, 6])
            graphed.release()
        kept = (values_of(model) or {})["steps"]
    assert [shape.beams for shape in kept] == [2, 4]  # the latest


def test_under_autocast_steps_are_not_replayed(model: Transformer) -> None:
    engine = TorchEngine(model, torch.device("cpu"))
    engine.graphed = True
    with engine.stepwise() as found:
        assert isinstance(found, Graphed)
    with torch.autocast("cpu", torch.bfloat16), engine.stepwise() as found:
        assert found is model


def test_threads_do_not_share_a_step(kit: Kit) -> None:
    translator = kit.translator(beam=3)
    expected = [translator.translate([line])[0][0].text for line in TEXT]
    engine: Any = translator.engine
    engine.graphed = True
    with engine.ready(), ThreadPoolExecutor(4) as pool:
        found = [each[0][0].text for each in pool.map(lambda line: translator.translate([line]), TEXT * 3)]
    assert found == expected * 3
