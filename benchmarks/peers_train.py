"""Train another package's model for some minutes and rank facts by it; `benchmarks/peers.py` calls this.

    PEERS/bin/python benchmarks/peers_train.py SYSTEM FOLDER     reads FOLDER/job.json, FOLDER/facts.npz
                                                                 writes FOLDER/ranks.json

It runs in an interpreter that has the other packages and not ours. The clock starts with the first update: neither
imports nor the reading of facts are counted.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fact_ranks import Ints, Scores, count

_EPOCHS = 1_000_000
"""More than there is time for."""


class TimeIsUp(Exception):  # noqa: N818
    """What ends a training."""


class Clock:
    """Counts updates from the first one on; where the time is over, the next one does not take place."""

    def __init__(self, minutes: float) -> None:
        self.limit = 60 * minutes
        self.start: float | None = None
        self.updates = 0

    def tick(self) -> None:
        """Before each update."""
        if self.start is None:
            self.start = time.monotonic()
        if self.seconds >= self.limit:
            raise TimeIsUp
        self.updates += 1

    @property
    def seconds(self) -> float:
        return 0.0 if self.start is None else time.monotonic() - self.start


def pykeen(train: Ints, sizes: tuple[int, int], job: dict[str, Any], folder: Path, clock: Clock) -> Scores:
    """PyKEEN's ComplEx, with inverse triples."""
    from pykeen.losses import CrossEntropyLoss  # noqa: PLC0415
    from pykeen.models import ComplEx  # noqa: PLC0415
    from pykeen.regularizers import LpRegularizer  # noqa: PLC0415
    from pykeen.training import LCWATrainingLoop, SLCWATrainingLoop, TrainingCallback  # noqa: PLC0415
    from pykeen.triples import CoreTriplesFactory  # noqa: PLC0415

    del folder
    settings = job["settings"]

    class Watch(TrainingCallback):  # type: ignore[misc]
        def pre_batch(self, **_: Any) -> None:
            clock.tick()

    factory = CoreTriplesFactory.create(
        torch.as_tensor(train).long(), num_entities=sizes[0], num_relations=sizes[1], create_inverse_triples=True
    )
    initial = partial(torch.nn.init.normal_, std=settings["deviation"])
    model = ComplEx(
        triples_factory=factory,
        embedding_dim=settings["dimension"],
        entity_initializer=initial,
        relation_initializer=initial,
        regularizer=LpRegularizer if settings["n3"] else None,
        regularizer_kwargs={"weight": settings["n3"], "p": 3.0, "normalize": True},
        loss=CrossEntropyLoss(),
        random_seed=job["seed"],
    )
    optimizer = getattr(torch.optim, settings["optimizer"])(model.parameters(), lr=settings["lr"])
    if settings["negatives"]:
        loop: Any = SLCWATrainingLoop(
            model=model,
            triples_factory=factory,
            optimizer=optimizer,
            negative_sampler_kwargs={"num_negs_per_pos": settings["negatives"]},
        )
    else:
        loop = LCWATrainingLoop(model=model, triples_factory=factory, optimizer=optimizer)
    with suppress(TimeIsUp):
        loop.train(factory, num_epochs=_EPOCHS, batch_size=settings["batch"], callbacks=Watch(), use_tqdm=False)

    def scores(facts: Ints, inverse: int) -> torch.Tensor:
        triples = torch.as_tensor(facts).long()
        found: torch.Tensor = model.predict_h(triples[:, 1:]) if inverse else model.predict_t(triples[:, :2])
        return found

    return scores


def dicee(train: Ints, sizes: tuple[int, int], job: dict[str, Any], folder: Path, clock: Clock) -> Scores:
    """A model of dicee, with reciprocal triples."""
    import tiktoken  # noqa: PLC0415
    from dicee.config import Namespace  # noqa: PLC0415
    from dicee.executer import Execute  # noqa: PLC0415
    from dicee.trainer.dice_trainer import DICE_Trainer  # noqa: PLC0415
    from dicee.trainer.torch_trainer import TorchTrainer  # noqa: PLC0415

    class Watched(TorchTrainer):  # type: ignore[misc]
        def forward_backward_update(self, x_batch: Any, y_batch: Any) -> Any:
            clock.tick()
            return super().forward_backward_update(x_batch, y_batch)

    class Trainer(DICE_Trainer):  # type: ignore[misc]
        def initialize_trainer(self, callbacks: list[Any]) -> Watched:
            return Watched(self.args, callbacks=callbacks)

    tiktoken.get_encoding = lambda name: tiktoken.Encoding(  # which dicee fetches from the net, and does not use here
        name, pat_str=".", mergeable_ranks={bytes([byte]): byte for byte in range(256)}, special_tokens={}
    )
    source = folder / "facts"
    source.mkdir()
    # Entities and relations are numbered in the order of their names: their own, with leading zeros.
    lines = [f"e{head:09}\tr{relation:09}\te{tail:09}\n" for head, relation, tail in train.tolist()]
    (source / "train.txt").write_text("".join(lines), "utf-8")
    args = Namespace()
    vars(args).update(job["settings"])
    args.dataset_dir, args.path_to_store_single_run = str(source), str(folder / "model")
    args.num_epochs, args.random_seed = _EPOCHS, job["seed"]
    args.eval_model = "train"  # which is not done here, but without it there are no reciprocal triples
    executor = Execute(args)
    executor.start_time = time.time()
    executor.create_and_store_kg()
    graph = executor.knowledge_graph
    assert (graph.num_entities, graph.num_relations) == (sizes[0], 2 * sizes[1]), (
        "something is not in the training facts"
    )
    trainer = Trainer(executor.args, is_continual_training=False, storage_path=args.full_storage_path)
    with suppress(TimeIsUp):
        trainer.start(knowledge_graph=graph)
    model = trainer.trainer.model.eval()
    number = {name: index for index, name in enumerate(graph.relation_to_idx["relation"])}
    columns = np.array([[number[f"r{r:09}{end}"] for r in range(sizes[1])] for end in ("", "_inverse")])

    def scores(facts: Ints, inverse: int) -> torch.Tensor:
        asked = np.stack([facts[:, 2 if inverse else 0], columns[inverse, facts[:, 1]]], axis=1)
        with torch.no_grad():
            found: torch.Tensor = model.forward_k_vs_all(torch.as_tensor(asked).long())
        return found

    return scores


def main() -> None:
    system, folder = sys.argv[1], Path(sys.argv[2])
    job = json.loads((folder / "job.json").read_text("utf-8"))
    with np.load(folder / "facts.npz") as stored:
        train, facts, known = (stored[name] for name in ("train", "facts", "known"))
    clock = Clock(job["minutes"])
    scores = {"pykeen": pykeen, "dicee": dicee}[system](train, (job["entities"], job["relations"]), job, folder, clock)
    seconds = clock.seconds
    greater, equal = count(scores, facts, known)
    document = {
        "seconds": round(seconds, 1),
        "updates": clock.updates,
        "versions": {name: version(name) for name in (system, "torch", "numpy")},
        "greater": greater.tolist(),
        "equal": equal.tolist(),
    }
    (folder / "ranks.json").write_text(json.dumps(document), "utf-8")


if __name__ == "__main__":
    main()
