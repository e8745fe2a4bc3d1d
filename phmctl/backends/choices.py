"""How a map is computed where there is a choice, by measurement: which execution, and by which library.

At the first use of a shape the candidates are timed on the spot, a few milliseconds each, as cuDNN's benchmark mode
does. A choice is kept for the process and in the machine's file (:mod:`phmctl.backends.machine`); a training takes its
choices before its first step and keeps them in its run (:func:`taken_from`), so that a resumed one computes the same.

``PHMCTL_MEASURE=0`` measures nothing and reads no file: what no run says is dense, by torch's own library. What is
recorded by a compiler or seen by ``torch.func`` takes the choices as they stand.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import NamedTuple

import torch

from phmctl.backends import machine
from phmctl.backends.measuring import Call, lowest_seconds, own_clock
from phmctl.backends.operators import is_recorded, is_transformed, is_watched
from phmctl.backends.pristine import undisturbed

VARIABLE = "PHMCTL_MEASURE"
AUTO, DENSE, FACTORED, RANK = "auto", "dense", "factored", "rank"
LEARNED, FIXED = "learned", "fixed"  # rules: what wants gradients
TRAINED, BUILT, KEPT = MODES = ("train", "eval", "kept")  # with gradients; H built for each use; H at hand
GAIN = 0.05  # what must be won over dense, and over torch's own library, for another to be taken
MOST, LEAST, WORK = 4096, 512, 1 << 32  # tokens that are measured at most; multiplications, if these are more
SMALL = 1 << 20  # multiplications, in microseconds: kept weights are applied as they are
ALLOWED, SHARE = 1.0, 0.05  # seconds, and share of a process's life, for measuring where it answers


class Choice(NamedTuple):
    """An execution and the library of its products."""

    execution: str
    library: str

    def __str__(self) -> str:
        return f"{self.execution} {self.library}"


class Provisional(Choice):
    """A choice for want of a measurement, which this is not the place or the time for; ask again."""


class Use(NamedTuple):
    """What a choice is for. Beyond the tokens that are measured, time grows with them."""

    d: int
    k: int
    n: int
    rank: int  # R of the rule's factors, 0 where they are not known
    tokens: int  # a power of two
    mode: str  # of MODES
    rule: str  # learned or fixed
    execution: str  # asked for: auto, or one of three
    dtype: str
    device: str
    threads: int
    libraries: str  # at hand, torch's own first, joined by +

    def __str__(self) -> str:
        return " ".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> "Use":
        """Return what :meth:`__str__` made. Raises ValueError for another text."""
        parts = text.split(" ")
        kinds = list(cls.__annotations__.values())
        return cls(*(kind(part) for kind, part in zip(kinds, parts, strict=True)))

    @property
    def default(self) -> Choice:
        """What is taken where nothing was measured."""
        return Choice(DENSE if self.execution == AUTO else self.execution, self.libraries.partition("+")[0])


Table = dict[Use, Choice]
Candidates = Callable[[Use], Mapping[Choice, Call]]


class _Scope(NamedTuple):
    table: Table
    frozen: bool


_scope: ContextVar[_Scope | None] = ContextVar("scope", default=None)
_known: Table = {}
alone = Lock()  # held by who measures or records a graph, which another's wait for the GPU would end
_began, _spent = time.perf_counter(), [0.0]  # seconds in which a process that answers did not


def rounded(tokens: int, d: int, k: int) -> int:
    """Return the power of two that stands for so many tokens, at most what is worth a measurement."""
    power = tokens.bit_length() - 1
    power += tokens * tokens > 1 << (2 * power + 1)  # nearer to the next one, as a factor
    most = min(MOST, max(LEAST, WORK // (d * k)))
    return min(1 << power, 1 << (most.bit_length() - 1))


def choose(use: Use, candidates: Candidates) -> Choice:
    """Return the choice for a use: from the run, the process or the machine's file, else measured now.

    Args:
        use: what for.
        candidates: gives what to time, each a call, for a use; :attr:`Use.default` among them.

    Returns:
        the choice, a :class:`Provisional` one where another may be made later.
    """
    scope = _scope.get()
    found = None if scope is None else scope.table.get(use)
    if found is not None:
        return found
    if scope is not None and scope.frozen:
        return _nearest(scope.table, use)
    found = _known.get(use) or _decide(use, candidates)
    if found is None:
        return Provisional(*use.default)
    if scope is not None:
        scope.table[use] = found
    return found


@contextmanager
def taken_from(table: Table, *, frozen: bool = False) -> Iterator[Table]:
    """Take choices from a table first, in this thread, and put every other one that is taken into it.

    Args:
        table: read and, unless frozen, written.
        frozen: measure nothing: a use that is not in the table goes as the one with the nearest number of tokens does.
    """
    token = _scope.set(_Scope(table, frozen))
    try:
        yield table
    finally:
        _scope.reset(token)


def standing(use: Use) -> Choice:
    """Return the choice as it stands for any number of tokens, that of the most; for graphs that are recorded."""
    scope = _scope.get()
    table = _known if scope is None else scope.table
    return _nearest(table, use._replace(tokens=MOST))


def measures() -> bool:
    """Whether measuring is allowed in this process."""
    return os.environ.get(VARIABLE, "1").lower() not in ("0", "off", "no", "false")


def as_text(table: Table) -> dict[str, str]:
    """Return a table as JSON can hold it."""
    return {str(use): str(choice) for use, choice in sorted(table.items())}


def from_text(entries: Mapping[str, str]) -> Table:
    """Return the table of such entries; those that mean nothing here are left out."""
    table = {}
    for text, choice in entries.items():
        execution, _, library = choice.partition(" ")
        try:
            use = Use.parse(text)
        except ValueError:
            continue
        if execution in (DENSE, FACTORED, RANK) and library in use.libraries.split("+"):
            table[use] = Choice(execution, library)
    return table


def cache_clear() -> None:
    """Forget what the process knows: the machine's file is read again."""
    _known.clear()
    _spent[0] = 0.0


def _nearest(table: Table, use: Use) -> Choice:
    """Return the choice for the nearest number of tokens, the default if there is none."""
    near = [other for other in table if other._replace(tokens=use.tokens) == use]
    if not near:
        return use.default
    return table[min(near, key=lambda other: abs(other.tokens.bit_length() - use.tokens.bit_length()))]


def _decide(use: Use, candidates: Candidates) -> Choice | None:
    """Return what the machine's file says, or a measurement; None where this is not the place for one."""
    if not measures():
        return use.default
    if not _may_measure(use):
        return None
    answers = use.mode == KEPT and _scope.get() is None  # a training, and a table, want it done
    with alone:
        began = time.perf_counter()
        if use not in _known and answers and _spent[0] > ALLOWED + SHARE * (began - _began):
            return None
        if use not in _known:
            _known.update({**from_text(machine.read()), **_known})
        if use not in _known:
            _known[use] = _measure(use, candidates)
            machine.add({str(use): str(_known[use])})
            _spent[0] += (time.perf_counter() - began) if answers else 0.0
        return _known[use]


def _may_measure(use: Use) -> bool:
    """Whether seconds would mean something: nobody records, transforms or replaces what is computed."""
    known = use.device.startswith(("cpu", "cuda"))  # for these there is a clock that waits until work is done
    if not known or is_recorded() or is_transformed() or is_watched():
        return False
    return not (use.device.startswith("cuda") and torch.cuda.is_current_stream_capturing())


@undisturbed
def _measure(use: Use, candidates: Candidates) -> Choice:
    torch.get_num_threads()  # a new thread learns only so how many it has
    calls = candidates(use)
    if len(calls) == 1:
        return next(iter(calls))
    return best_of(lowest_seconds(calls, own_clock(use.device.partition(":")[0])), use.default)


def best_of(seconds: Mapping[Choice, float], default: Choice) -> Choice:
    """Return the fastest, but dense, and of libraries torch's own, where the gain is below 5 %."""
    usual = _better(seconds, default, [choice for choice in seconds if choice.execution == default.execution])
    return _better(seconds, usual, list(seconds))


def _better(seconds: Mapping[Choice, float], usual: Choice, others: list[Choice]) -> Choice:
    best = min(others, key=seconds.__getitem__)
    return best if seconds[best] < (1 - GAIN) * seconds[usual] else usual
