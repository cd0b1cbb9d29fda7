"""Every grade and its sentence, on figures made up for it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from query2particles.evaluate import Evaluation, Figures
from query2particles.query.algebra import NEGATION, SHAPES
from query2particles.verdict import Verdict, verdict


def an_evaluation(mrr: Mapping[str, float], queries: int = 300) -> Evaluation:
    return Evaluation({name: Figures(queries, 0, {"mrr": value}, 0, 0.0) for name, value in mrr.items()})


def judged(own: float, *, counted: float = 0.13, frequent: float = 0.09, **changes: float) -> Verdict:
    """Of a model with the same figure on all shapes but those of `changes`, which start with an underscore."""
    model = dict.fromkeys(SHAPES, own) | {name.removeprefix("_"): value for name, value in changes.items()}
    return verdict(
        an_evaluation(model),
        {
            "frequent-tails": an_evaluation(dict.fromkeys(SHAPES, frequent)),
            "relax-and-count": an_evaluation(dict.fromkeys(SHAPES, counted)),
        },
    )


def test_a_good_run() -> None:
    assert judged(0.312) == Verdict(
        "good",
        "This run is good: 31.2 MRR, 2.4 times the better baseline (relax-and-count, 13.0); it leads on all 14 shapes.",
    )


def test_a_fair_run_and_what_could_be_done() -> None:
    found = judged(0.16)
    assert found.grade == "fair"
    assert found.sentence.startswith(
        "This run is fair: 16.0 MRR, 1.2 times the better baseline (relax-and-count, 13.0); it leads on all 14 shapes; "
    )
    assert "train it longer" in found.sentence


def test_a_weak_run() -> None:
    found = judged(0.135)
    assert found.grade == "weak"
    assert found.sentence.startswith(
        "This run is weak: 13.5 MRR, hardly better than counting stored facts (relax-and-count, 13.0); "
    )
    assert "train it longer" in found.sentence


def test_a_useless_run() -> None:
    found = judged(0.067)
    assert found.grade == "useless"
    assert found.sentence.startswith(
        "This run is worse than counting: 6.7 MRR against 13.0 of relax-and-count, which learns nothing; do not use "
    )


def test_the_better_baseline_is_the_one_to_beat() -> None:
    assert "(frequent-tails, 20.0)" in judged(0.4, frequent=0.2).sentence
    assert judged(0.16, frequent=0.2).grade == "useless"


def test_shapes_that_lose_are_named_where_they_are_few() -> None:
    few = judged(0.5, _2in=0.01, _pin=0.13)  # a tie is no lead
    assert few.grade == "good"
    assert "it leads on 12 of 14 shapes, not on 2in, pin." in few.sentence
    many = judged(0.7, **{f"_{name}": 0.01 for name in NEGATION})
    assert many.grade == "fair"  # ahead by far on average, and behind on every third shape
    assert "it leads on 9 of 14 shapes; " in many.sentence


@pytest.mark.parametrize(
    ("own", "counted", "grade"),
    [
        (0.02, 0.01, "good"),
        (0.012, 0.01, "fair"),
        (0.9, 0.7, "good"),  # two thirds of what was left over
        (0.75, 0.7, "fair"),
        (0.71, 0.7, "weak"),
        (1.0, 0.99, "good"),
        (0.99, 1.0, "useless"),
        (1.0, 1.0, "weak"),
        (0.13, 0.13, "weak"),
    ],
)
def test_grades_hold_for_low_and_for_high_figures(own: float, counted: float, grade: str) -> None:
    assert judged(own, counted=counted, frequent=0.001).grade == grade


def test_only_shapes_that_all_have_answered_count() -> None:
    baselines = {"relax-and-count": an_evaluation({"1p": 0.1, "2p": 0.1})}
    model = an_evaluation({"1p": 0.3, "2in": 0.9})
    nothing_hard = Evaluation({**model.shapes, "2p": Figures(0, 9, {}, 0, 0.0)})
    for one in (model, nothing_hard):
        assert verdict(one, baselines).sentence == (
            "This run is good: 30.0 MRR, 3.0 times the better baseline (relax-and-count, 10.0); "
            "it leads on the one shape that was asked."
        )


def test_shapes_outside_the_fourteen_count_where_there_are_no_others() -> None:
    spelled = "n(i(n(p(e)),n(p(e))))"
    model, other = ({spelled: own, "1p": 1 - own} for own in (0.9, 0.4))
    assert verdict(an_evaluation(model), {"other": an_evaluation(other)}).grade == "useless"
    alone = verdict(an_evaluation({spelled: 0.9}), {"other": an_evaluation({spelled: 0.4})})
    assert alone.grade == "good"


@pytest.mark.parametrize(("queries", "grade"), [(24, "unknown"), (25, "good")])
def test_few_queries_tell_nothing(queries: int, grade: str) -> None:
    model, other = (an_evaluation({"1p": own, "2p": own}, queries) for own in (0.9, 0.1))
    found = verdict(model, {"other": other})
    assert found.grade == grade
    assert ("48 of those asked" in found.sentence) == (grade == "unknown")
    assert found.as_json() == {"grade": grade, "sentence": found.sentence}


def test_no_common_shape_tells_nothing() -> None:
    assert verdict(an_evaluation({"1p": 0.5}), {"other": an_evaluation({"2p": 0.5})}).grade == "unknown"
