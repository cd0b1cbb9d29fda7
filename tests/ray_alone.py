"""Ray in a process of its own, on this machine alone: two nodes share a run's table, then one is killed.

Called with a run folder; prints what happened as JSON. Not a test itself: Ray's threads and logs stay out of the tests.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster as Nodes

from query2particles.answer import Answers, Question, Reasoner
from query2particles.cluster import Cluster
from query2particles.errors import Query2ParticlesError, ShardsLostError
from query2particles.query.algebra import ground
from query2particles.query.syntax import format_query
from query2particles.searched import Searching
from query2particles.workload.selection import drawn_queries

LOCAL = {"num_cpus": 1, "include_dashboard": False, "node_ip_address": "127.0.0.1"}


def main(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = {}
    nodes: Any = Nodes(initialize_head=True, head_node_args=LOCAL)
    try:
        second = nodes.add_node(num_cpus=1, node_ip_address="127.0.0.1")
        ray.init(address=nodes.address, log_to_driver=False)
        alone = Reasoner.open(folder)
        batch, _ = drawn_queries(alone.graph, "valid", most=2, seed=0)
        texts = [
            format_query(ground(shape, row), alone.lexicon) for shape, ids in batch.items() for row in ids.tolist()
        ]
        questions = [Question(text, k=8) for text in [*texts, "!e1.r0"]]
        strict = Reasoner.open(folder, searching=Searching(shards=2))
        assert isinstance(strict.search, Cluster)
        told["sizes"] = list(strict.search.sizes)
        told["nodes"] = len(nodes.list_all_nodes())
        told["alone"] = [_told(one) for one in alone.answer_many(questions)]
        told["shared"] = [_told(one) for one in strict.answer_many(questions)]
        lenient = Reasoner(
            alone.graph,
            model=alone.model,
            calibration=alone.calibration,
            search=Cluster(strict.search.table, strict.search.parts, strict.search.sizes, "allow"),
        )
        nodes.remove_node(second, allow_graceful=False)
        told["refused"] = [str(one) for one in strict.answer_many(questions) if isinstance(one, ShardsLostError)]
        told["asked"] = len(questions)
        told["degraded"] = [_told(one) for one in lenient.answer_many(questions)]
        try:
            Cluster.start(alone.run, strict.search.table, shards=9)  # type: ignore[arg-type]
        except Query2ParticlesError as error:
            told["too many"] = str(error)
        strict.search.stop()
    finally:
        ray.shutdown()
        nodes.shutdown()
    return told


def _told(one: Answers | Query2ParticlesError) -> dict[str, Any]:
    assert isinstance(one, Answers), one
    ids = [answer.entity_id for answer in one.answers]
    return {**one.as_json(), "ids": ids}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
