"""How a card's corpus comes from the network, and how splits that it lacks are held out of train."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from phmctl.data.card import CardBase, Divide
from phmctl.data.prepared.build import tidying
from phmctl.data.readers import HoldOut
from phmctl.errors import DownloadError
from phmctl.files import locked

Row = TypeVar("Row")
CorpusT = TypeVar("CorpusT")


def from_network(
    card: CardBase,
    cache: Path,
    read: Callable[[Path, str], CorpusT],
    load: Callable[[Path], CorpusT],
    *,
    refetch: bool = False,
) -> CorpusT:
    """Ask the URLs and the hub in the card's order; the first that answers serves.

    One process fetches at a time; another waits, and then finds what was fetched.

    Args:
        card: the dataset card.
        cache: where downloads are kept.
        read: returns the corpus from a folder of its files; the second argument says in words what the folder is.
        load: returns it from the hub, keeping what is fetched in the folder given.
        refetch: fetch what is in the cache already, too.

    Raises:
        DownloadError: neither server nor hub gives it.
        DataError: what they give is not what the card says.
    """

    def fetch() -> CorpusT:
        from phmctl.data.fetch.archives import fetch_all

        folder = cache / f"urls-{card.urls_digest[:12]}"
        fetch_all(card.urls, folder, refetch=refetch)
        return read(folder, "the card's URLs")

    ways: dict[str, Callable[[], CorpusT]] = {"urls": fetch, "hub": partial(load, cache / "hub")}
    refused = []
    lock = cache / ".lock"
    with locked(lock), tidying(lock):
        for way in card.ways:
            try:
                return ways[way]()
            except DownloadError as error:
                refused.append(str(error).split("\n")[0])
        reason = "; ".join(refused) or "the card names neither a hub nor URLs"
        raise DownloadError(
            f"cannot fetch {card.id!r}: {reason}\nif you have the files: phmctl prepare-data {card.id} --source DIR"
        )


def held_out_of_train(
    splits: Mapping[str, Iterable[Row]], divide: Divide, rows: str
) -> tuple[dict[str, HoldOut[Row]], dict[str, str]]:
    """Hold the splits that a corpus lacks out of train: always the same rows, whatever the source.

    Args:
        splits: what there is, train among it. A split that is there already is not made.
        divide: which rows are for valid and test.
        rows: what the rows are called.

    Returns:
        train and the splits that are made, and in words which rows those are; both empty where none is to be made.
    """
    places: dict[str, int] = {split: place for split, place in divide.places.items() if split not in splits}
    if not places:
        return {}, {}
    whole, period = splits["train"], divide.period
    made = {
        "train": HoldOut(whole, period, held=False, places=tuple(places.values())),
        **{split: HoldOut(whole, period, held=True, places=(place,)) for split, place in places.items()},
    }
    return made, {
        split: f"{rows} {place:,}, {place + period:,}, {place + 2 * period:,}, ..." for split, place in places.items()
    }
