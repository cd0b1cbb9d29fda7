"""Whether guesses deserve trust: what a run claims of natural questions, and what facts that it has not seen say.

Training and validation facts are stored, test facts tell the truth. Of the guesses of natural questions: whether any is
the question's own entity or of a kind that the relation never has, whether a functional relation with a stored answer
is left alone, how often guesses come true by what they claim, beside one curve for all relations that was fitted to
queries with a missing answer (as this project did before), whether the number of missing answers is right, and whether
facts are told from corruptions with another tail of the same relation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from query2particles.answer import Answers, Question, Ranked, Reasoner
from query2particles.bench.record import Bench, significant
from query2particles.calibration.additive import Additive, Samples
from query2particles.calibration.calibration import Judge
from query2particles.calibration.fitting import rankings_of
from query2particles.calibration.questions import last_relation
from query2particles.calibration.rates import functional
from query2particles.calibration.reliability import Judged, reliability
from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.exact import Batch
from query2particles.engine.ranks import scoring
from query2particles.errors import UsageError
from query2particles.graph.edges import Edges, Ints
from query2particles.graph.graph import Graph
from query2particles.provenance import machine
from query2particles.query.algebra import SHAPES, Intersect, Project, Query, Union, ground
from query2particles.query.text import format_path
from query2particles.ranking import rank
from query2particles.workload.labels import label
from query2particles.workload.natural import natural_questions
from query2particles.workload.selection import drawn_queries

__all__ = ["bench_trust"]

Floats: TypeAlias = npt.NDArray[np.float64]

_SHOWN = 10
"""Guesses of each question that are shown."""

_ASKED = 300
"""Questions whose guesses are looked at one by one: one-hop ones, and as many of all shapes."""

_LIKELY = 0.05
_FACTS = 4000
_BIN, _OF_RELATION = 200, 100
"""Samples of a bin, and of a relation, whose error is told."""


def bench_trust(
    run: Path,
    *,
    graph: str | None,
    one_hop: int,
    longer: int,
    seed: int,
    progress: Callable[[int], object] = lambda _: None,
) -> Bench:
    """Of a calibrated run: `one_hop` natural one-hop questions and `longer` of each other shape."""
    reasoner = Reasoner.open(run, graph=graph, split="valid")
    if reasoner.judge is None or reasoner.run is None:
        raise UsageError(f"{run} is not calibrated: q2p calibrate {run}")
    stored, truth = reasoner.graph.at("valid"), reasoner.graph.at("test")
    if stored.facts == truth.facts:
        raise UsageError(f"{reasoner.graph.name} has no test facts, which would tell what is true")
    method = reasoner.run.config.method
    result = Bench(
        f"trust-{reasoner.graph.name.lower()}",
        machine("cpu"),
        f"natural questions of {reasoner.graph.name} to {method}, trained in {reasoner.run.cost()[0]:.0f} s; training "
        f"and validation facts stored, test facts tell the truth: {one_hop} one-hop questions, {longer} of each other "
        "shape; percentages",
        seed=seed,
        compares="times the figure of one curve for all relations",
    )
    few = natural_questions(stored, truth, count=-(-_ASKED // len(SHAPES)), one_hop=_ASKED, seed=seed)
    _look_at_guesses(result, reasoner, few)
    batch = natural_questions(stored, truth, count=longer, one_hop=one_hop, seed=seed + 1)
    _measure(result, reasoner, reasoner.judge, batch, progress)
    _measure_facts(result, reasoner, np.random.default_rng(seed))
    return result


def _look_at_guesses(result: Bench, reasoner: Reasoner, batch: Batch) -> None:
    edges = reasoner.graph.at("valid")
    everything = reasoner.graph.at("test")
    likely = own = wrong = closed = quiet = 0
    share = functional(edges)
    for shape, ids in batch.items():
        texts = [format_path(ground(shape, row), reasoner.lexicon) for row in ids.tolist()]
        questions = [Question(text, "path", _SHOWN, only="predicted") for text in texts]
        echoes = reasoner.plausible.echoes({shape: ids})[shape]
        for row, found in enumerate(reasoner.answer_many(questions)):
            if not isinstance(found, Answers):
                continue
            guesses = [one for one in found.answers if isinstance(one, Ranked)]
            shown = np.array([one.entity_id for one in guesses if (one.probability or 0.0) >= _LIKELY], dtype=np.int64)
            likely += len(shown)
            own += int(np.isin(shown, echoes[row]).sum())
            wrong += sum(not _of_kind(everything, shape, ids[row], int(entity)) for entity in shown)
            if shape == SHAPES["1p"] and found.total and share[ids[row, 1]] >= 0.99:
                closed += 1
                quiet += not guesses or (guesses[0].probability or 0.0) < 0.02
    result.figures |= {
        "guesses of 5 % or more": likely,
        "of these the question's own entity": own,
        "of these of a kind that the relation never has, %": significant(100 * wrong / max(likely, 1)),
        "functional relations with a stored answer": closed,
        "of these with a best further guess under 2 %, %": significant(100 * quiet / max(closed, 1)),
    }


def _of_kind(edges: Edges, shape: Query, ids: Ints, entity: int) -> bool:
    """Whether an entity shares a role with some tail of the last relation, or is one: a rule without any threshold."""
    match shape:
        case Project(_, position):
            role = int(ids[position]) ^ 1
            roles = set(edges.relations_of(entity).tolist())
            if role in roles or not roles:
                return True
            tails = edges.heads_of(role).astype(np.int64)
            return any(edges.lengths_of(tails, np.full(len(tails), one)).any() for one in roles)
        case Intersect(several):
            return all(_of_kind(edges, branch, ids, entity) for branch in several)
        case Union(several):
            return any(_of_kind(edges, branch, ids, entity) for branch in several)
        case _:
            return True


def _measure(result: Bench, reasoner: Reasoner, judge: Judge, batch: Batch, progress: Callable[[int], object]) -> None:
    """Probabilities and numbers of missing answers."""
    model, edges = reasoner.model, reasoner.graph.at("valid")
    assert model is not None, "what is calibrated is a model"
    labels = label(reasoner.graph, "test", batch)
    before = _one_curve(reasoner)
    judged: dict[str, list[Judged]] = {"one hop": [], "longer": []}
    others: list[Judged] = []
    numbers: dict[str, list[tuple[Ints, Floats]]] = {"one hop": [], "longer": []}
    with scoring(model):
        for shape, ids in batch.items():
            if Disjuncts.of(shape, reasoner.unions).lacking(model):
                continue
            name = "one hop" if shape == SHAPES["1p"] else "longer"
            for rows, ranking in rankings_of(model, edges, shape, ids, reasoner.unions, judge.plausible):
                own = labels[shape].take(np.arange(rows.start, rows.stop))
                there = np.isfinite(ranking.best_scores)
                p = judge.open(shape, ids[rows], ranking, ranking.best_scores, np.where(there, ranking.best, -1))
                numbers[name].append((own.hard.sizes.astype(np.int64), p.sum(1)))
                order = np.argsort(-np.where(there, p, -1), axis=1, kind="stable")[:, :_SHOWN]
                there, p, entities, scores = (
                    np.take_along_axis(one, order, axis=1) for one in (there, p, ranking.best, ranking.best_scores)
                )
                true = own.hard.contain(entities)
                question = np.broadcast_to(np.arange(len(p))[:, None], p.shape)
                relation = np.broadcast_to(last_relation(shape, ids[rows])[:, None], p.shape)
                columns = true[there], question[there], relation[there], np.ones(int(there.sum()))
                judged[name].append(Judged(p[there], *columns))
                features = ranking.contexts.features(np.where(there, scores, 0.0))
                others.append(Judged(before(features)[there], *columns))
                progress(len(p))
    for name, several in judged.items():
        if several:
            _record(result, name, Judged.joined(several))
            missing, expected = (np.concatenate(column) for column in zip(*numbers[name], strict=True))
            for what, off in (("known", missing), ("known and expected", missing - expected)):
                result.figures[f"{name}: number of answers, {what}, root mean square error"] = significant(
                    float(np.sqrt(np.square(off).mean()))
                )
                result.figures[f"{name}: number of answers, {what}, mean error"] = significant(
                    float(np.abs(off).mean())
                )
    every = Judged.joined([one for several in judged.values() for one in several])
    _record(result, "all", every)
    ours, theirs = every.figures(), Judged.joined(others).figures()
    for figure in ("top_ece", "ece", "log_loss", "brier"):
        result.figures[f"all: one curve for all relations, {figure}"] = significant(getattr(theirs, figure))
        result.ratios[f"all: {figure}"] = significant(getattr(ours, figure) / max(getattr(theirs, figure), 1e-12))


def _record(result: Bench, name: str, judged: Judged) -> None:
    figures, top = judged.figures(), judged.top()
    large = [one for one in reliability(top.claimed, top.true) if one.count >= _BIN]
    relations = judged.by_relation(_OF_RELATION).values()
    result.figures |= {
        f"{name}: questions": figures.questions,
        f"{name}: top guesses, expected calibration error, %": significant(100 * figures.top_ece),
        f"{name}: top guesses, worst bin of {_BIN} or more, points": significant(
            100 * max((abs(one.claimed - one.true) for one in large), default=0.0)
        ),
        f"{name}: top guesses, relations with {_OF_RELATION} or more": len(relations),
        f"{name}: top guesses, worst of these, points": significant(
            100 * max((abs(one.claimed - one.true) for one in relations), default=0.0)
        ),
        f"{name}: shown guesses, expected calibration error, %": significant(100 * figures.ece),
        f"{name}: shown guesses, log_loss": significant(figures.log_loss),
        f"{name}: shown guesses, brier": significant(figures.brier),
        f"{name}: guesses of 50 % or more": figures.likely,
        f"{name}: they claim, %": significant(100 * figures.likely_claimed),
        f"{name}: they are right, %": significant(100 * figures.likely_true),
    }


def _one_curve(reasoner: Reasoner) -> Callable[[Floats], Floats]:
    """P by score, lead and number of known answers alone, fitted to validation queries that miss an answer."""
    assert reasoner.model is not None, "what is calibrated is a model"
    edges = reasoner.graph.at("train")
    batch, labels = drawn_queries(reasoner.graph, "valid", most=100, seed=0)
    samples = []
    with scoring(reasoner.model):
        for shape, ids in batch.items():
            if Disjuncts.of(shape, reasoner.unions).lacking(reasoner.model):
                continue
            k = min(100, edges.entities)
            ranking = rank(reasoner.model, edges, {shape: ids}, k, unions=reasoner.unions)[shape]
            there = np.isfinite(ranking.best_scores)
            features = ranking.contexts.features(np.where(there, ranking.best_scores, 0.0))[there]
            true = labels[shape].hard.contain(ranking.best)[there]
            none = np.zeros(len(true), dtype=np.int64)
            samples.append(Samples(features, none, np.ones(len(true)), none, true))
    names = ("score", "lead", "known")
    return Additive.fit(names, Samples.joined(samples), rising=(True, False, False), by_relation=False)


def _measure_facts(result: Bench, reasoner: Reasoner, generator: np.random.Generator) -> None:
    """Test facts against the same with another tail of their relation."""
    assert reasoner.judge is not None, "the run is calibrated"
    assert reasoner.model is not None, "what is calibrated is a model"
    truth = reasoner.graph.at("test")
    pairs = [
        ((head, relation, tail), (head, relation, int(generator.choice(others))))
        for head, relation, tail in _new_facts(reasoner.graph, generator).tolist()
        if len(others := np.setdiff1d(truth.heads_of(relation ^ 1), truth.tails_of(head, relation)))
    ]
    true, false = np.array(pairs).transpose(1, 0, 2)
    started = time.perf_counter()
    with scoring(reasoner.model):
        right, wrong = (reasoner.judge.facts(*facts.T) for facts in (true, false))
    seconds = time.perf_counter() - started
    above = rankdata(np.concatenate([right, wrong]))[: len(right)].sum() - len(right) * (len(right) + 1) / 2
    before = np.mean(right > wrong) + np.mean(right == wrong) / 2
    accepted = int((right >= 0.5).sum()), int((wrong >= 0.5).sum())
    result.figures |= {
        "facts against other tails of the relation": len(right),
        "area under the curve": significant(above / (len(right) * len(wrong))),
        "a fact is likelier than its own corruption, %": significant(100 * before),
        "accepted at 50 % or more, precision, %": significant(100 * accepted[0] / max(sum(accepted), 1)),
        "accepted at 50 % or more, recall, %": significant(100 * accepted[0] / len(right)),
        "facts judged in a second": round((len(right) + len(wrong)) / seconds),
    }


def _new_facts(graph: Graph, generator: np.random.Generator) -> Ints:
    """(m, 3): test facts as they are stored."""
    edges, before = graph.at("test"), graph.at("valid")
    heads, relations = edges.heads_and_relations()
    new = np.flatnonzero((relations % 2 == 0) & ~np.isin(edges.packed(), before.packed()))
    some = generator.choice(new, min(_FACTS, len(new)), replace=False)
    return np.stack([heads[some], relations[some], edges.tails[some].astype(np.int64)], axis=1)
