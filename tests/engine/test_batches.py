"""The pool: every query that is drawn is used, once, in its order."""

from __future__ import annotations

import torch

from query2particles.engine.batches import Drawn, Pool


class Counting:
    """Parts of several sizes and numbers of positions; every query is told from all others by its numbers."""

    def __init__(self, *parts: tuple[int, int]) -> None:
        self.parts = parts  # queries and positions
        self.draws: list[list[Drawn]] = []

    def draw(self) -> list[Drawn]:
        first = 1000 * (len(self.draws) + 1)
        drawn = []
        for count, positions in self.parts:
            numbers = torch.arange(first, first + count)
            ids = 10 * numbers[:, None] + torch.arange(positions)
            drawn.append(Drawn(ids, -numbers, numbers % 7, (numbers % 2).float()))
            first += count
        self.draws.append(drawn)
        return drawn


def test_every_query_is_used_once_in_order() -> None:
    batches = 4
    stream = Counting((3 * batches, 2), (1 * batches, 5), (2 * batches, 3))
    pool = Pool(stream, batches)
    for _ in range(3):
        pool.fill()
        taken = [pool.take() for _ in range(batches)]
        assert [[tuple(part.ids.shape) for part in batch] for batch in taken] == [[(3, 2), (1, 5), (2, 3)]] * batches
        for drawn, *parts in zip(stream.draws[-1], *taken, strict=True):
            for field in Drawn._fields:
                together = torch.cat([getattr(part, field) for part in parts])
                assert torch.equal(together, getattr(drawn, field)), field


def test_filling_draws_once() -> None:
    """Making a pool draws once too, to see how many queries of each shape there are."""
    stream = Counting((4, 2))
    pool = Pool(stream, 2)
    before = len(stream.draws)
    pool.fill()
    assert len(stream.draws) == before + 1
    pool.take()
    pool.take()
    assert len(stream.draws) == before + 1


def test_filling_starts_again_at_the_first_batch() -> None:
    stream = Counting((4, 2))
    pool = Pool(stream, 2)
    pool.fill()
    pool.take()
    pool.fill()
    (part,) = pool.take()
    assert torch.equal(part.positives, stream.draws[-1][0].positives[:2])


def test_a_batch_keeps_its_place_in_memory() -> None:
    """A captured update reads from where it read before; only what is there changes."""
    stream = Counting((4, 2), (2, 3))
    pool = Pool(stream, 2)
    places = []
    for _ in range(2):
        pool.fill()
        places.append([value.data_ptr() for value in vars(pool).values() if isinstance(value, torch.Tensor)])
    assert places[0] == places[1]
    assert len(places[0]) >= len(Drawn._fields)
