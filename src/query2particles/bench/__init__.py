"""Speed, as ratios in one run: machines differ and are noisy, a ratio measured side by side is neither.

exact     answers of the fourteen shapes, against plain Python sets; both on all cores, both write every answer out
sample    drawing and labelling queries, against a plain Python sampler; both on all cores
import    ten million synthetic triples from TSV to a graph folder, and opening it; or a hundred million, in steps
train     updates of training, sampling included, against the matrix products of their own scores
softmax   accuracy of training against some entities, against that of training against all, after as many seconds
evaluate  evaluation of a query set, against the same model one query at a time
answer    one query from ids to its ten best answers
growth    training, sampling, import and answers as a graph grows
index     the ten best of a large table on disk, by an index and exactly
trust     what a run claims of natural questions, beside what test facts say

The last six are in modules of their own, which load torch: `bench.training`, `bench.softmax`, `bench.evaluating`,
`bench.answering`, `bench.indexing`, `bench.trust`.
"""

from query2particles.bench.data import bench_data, bench_graph
from query2particles.bench.record import Bench, Say
from query2particles.bench.symbolic import bench_exact, bench_import, bench_import_large, bench_sample
from query2particles.provenance import machine

__all__ = [
    "Bench",
    "Say",
    "bench_data",
    "bench_exact",
    "bench_graph",
    "bench_import",
    "bench_import_large",
    "bench_sample",
    "machine",
]
