"""The choices of a training: how each map is applied, settled before the first step and kept in the run.

A step that took another execution, or another library, would round differently. So the first process measures what a
few batches meet, tells the others, and writes it into ``environment.json``; from then on nothing is measured. What is
resumed takes what is written there.
"""

import torch

from phmctl.algebra.execution import decide
from phmctl.backends.choices import KEPT, Table, Use, as_text, from_text, measures, taken_from
from phmctl.backends.products import libraries
from phmctl.files import write_json
from phmctl.runs import ENVIRONMENT
from phmctl.training.processes import Processes
from phmctl.training.trainer import Trainer

KEY = "choices"  # of environment.json
BATCHES = 2
FEWER = (256, 32)  # tokens that a search of translations meets beside a batch's: in evaluation these count too


def settle_choices(trainer: Trainer, processes: Processes) -> Table:
    """Return the choices of a training, the same in each process; every process calls it.

    A model in shards is not rehearsed: it wants all processes. It takes what the run says, and dense for the rest.

    Raises:
        OutputError: the run cannot be written.
    """
    table: Table = {}
    with processes.agreed():
        if processes.leads:
            noted = trainer.run.environment()
            table = from_text(noted.get(KEY, {}))
            before = len(table)
            if measures() and not (trainer.is_sharded or _is_settled(table, trainer.device)):
                _measure(trainer, table)
            if len(table) > before:
                write_json(trainer.run.folder / ENVIRONMENT, noted | {KEY: as_text(table)})
    return from_text(processes.tell(as_text(table)))


def _is_settled(table: Table, device: torch.device) -> bool:
    """Whether a table was made on such a device with as many threads and these libraries: then it is the whole one."""
    threads = torch.get_num_threads()
    here = [use for use in table if use.threads == threads and use.device.startswith(device.type)]
    return any(use.libraries == "+".join(_libraries(use, device)) for use in here)


def _libraries(use: Use, device: torch.device) -> tuple[str, ...]:
    return libraries(device.type, getattr(torch, use.dtype), kept=use.mode == KEPT)


def _measure(trainer: Trainer, table: Table) -> None:
    """Put into a table what a few batches meet."""
    with taken_from(table):
        trainer.rehearse(BATCHES)
        for use in [use for use in table if use.mode == KEPT]:
            for tokens in FEWER:
                decide(use._replace(tokens=min(tokens, use.tokens)))
