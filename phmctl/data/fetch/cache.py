"""How a card's corpus comes from the network: its URLs or the hub, kept in one place, fetched by one process."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from phmctl.data.card import Card
from phmctl.errors import DownloadError
from phmctl.files import locked, tidying

CorpusT = TypeVar("CorpusT")


def from_network(
    card: Card,
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
