from concurrent.futures import ThreadPoolExecutor

import phmctl
from phmctl.nn.caching import values_of
from phmctl.nn.linear import PHMLinear
from phmctl.runs import Run
from phmctl.serving.service import Service
from tests.tasks.translation.runs import SOURCES

SECONDS = 30


def test_h_is_built_once_for_all_batches_and_workers_and_for_nobody_else(tiny_run: Run) -> None:
    model = phmctl.load(tiny_run.folder, device="cpu")
    served = Service(model, workers=2)
    layers = [layer for layer in model._model.modules() if isinstance(layer, PHMLinear)]

    def kept() -> list[int]:
        return [id(value) for layer in layers for value in served._scope.values_of(layer).values()]

    texts = {"texts": SOURCES[:3], "cut": True, "beam": 1}
    served.ask("translate", texts).result(SECONDS)
    first = kept()
    assert len(first) >= len(layers) > 0
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda beam: served.ask("translate", texts | {"beam": beam}).result(SECONDS), (1, 2, 1, 2)))
    assert kept() == first
    assert values_of(layers[0]) is None
    served.batcher.close(SECONDS)
