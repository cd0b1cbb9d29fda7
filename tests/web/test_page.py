"""The workbench in a real browser, before a real server."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.request import Request, urlopen

import pytest

if os.environ.get("Q2P_BROWSER") != "required":
    pytest.importorskip("playwright", reason="playwright is not installed: the browser tests are SKIPPED")

from playwright.sync_api import expect

from query2particles.answer import Question, Reasoner
from query2particles.demo import QUESTIONS
from query2particles.serve.pages import STATIC
from web.conftest import KEY

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from web.conftest import Opener

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]  # one server and one browser for all

TURING = '("Turing Award".^award_received & !Canada.^citizen_of).graduated_from'
FIRST_LOAD = 300_000
"""Bytes, compressed, that the page may have."""


@pytest.fixture(scope="module")
def reasoner(atlas_run: Path) -> Reasoner:
    """What the server answers with, in this process."""
    return Reasoner.open(atlas_run, split="train")


def question_of(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Question")


def answers_of(page: Page) -> Locator:
    return page.locator("table.answers tbody tr")


def expect_answers(page: Page, labels: list[str]) -> None:
    expect(page.locator("button.answer")).to_have_text(labels)


def choose(page: Page, node: str, *steps: str) -> None:
    """Click on a node of the question, on a line of its menu, and on a name."""
    page.get_by_role("button", name=node).click()
    *lines, last = steps
    for line in lines:
        page.get_by_role("menuitem", name=line).click()
    kind: Literal["option", "menuitem"] = "option" if lines or node.startswith("Start") else "menuitem"
    page.get_by_role("dialog").get_by_role(kind, name=last).first.click()


def test_the_turing_question_is_built_by_clicking_only(workbench: Opener, reasoner: Reasoner) -> None:
    page = workbench().open()
    choose(page, "Start from an entity", "Turing Award")
    choose(page, "Turing Award: change", "Follow a relation", "award received ? → here")
    choose(page, "award received, backwards: change", "And", "Canada")
    choose(page, "Canada: change", "Follow a relation", "citizen of ? → here")
    choose(page, "citizen of, backwards: change", "Not")
    choose(page, "and: change", "Follow a relation", "graduated from here → ?")
    expect(question_of(page)).to_have_value(TURING)
    expected = reasoner.answer(Question(TURING))
    expect_answers(page, [answer.label for answer in expected.answers])
    expect(page.get_by_role("status")).to_contain_text(f"{expected.total} known;")


def test_the_graph_can_be_changed_and_undone(workbench: Opener) -> None:
    page = workbench().open(TURING)
    choose(page, "not: change", "Remove “not”")
    expect(question_of(page)).to_have_value(TURING.replace("!", ""))
    choose(page, "and: change", "Change to “or”")
    expect(question_of(page)).to_have_value(TURING.replace("!", "").replace("&", "|"))
    choose(page, "Canada: change", "Remove this branch")
    expect(question_of(page)).to_have_value('"Turing Award".^award_received.graduated_from')
    choose(page, "graduated from: change", "Remove this step")
    choose(page, "award received, backwards: change", "Turn the relation around")
    expect(question_of(page)).to_have_value('"Turing Award".award_received')
    choose(page, "Turing Award: change", "Remove")
    expect(question_of(page)).to_have_value("")
    expect(page.get_by_role("button", name="Start from an entity")).to_be_focused()


def test_every_example_is_answered_as_in_python(workbench: Opener, reasoner: Reasoner) -> None:
    watched = workbench()
    for words, _, text in QUESTIONS:
        page = watched.open()
        page.get_by_role("button", name="Examples").click()
        page.get_by_role("dialog").get_by_role("button", name=words).click()
        expect(question_of(page)).to_have_value(text)
        expect_answers(page, [answer.label for answer in reasoner.answer(Question(text)).answers])


def test_the_graph_follows_the_text_in_any_syntax(workbench: Opener) -> None:
    page = workbench().open('?x : exists y. award_received(y, "Turing Award") & graduated_from(y, ?x)')
    expect(page.get_by_role("button", name="award received, backwards: change")).to_be_visible()
    expect(page.get_by_role("button", name="logic")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="path").click()
    expect(question_of(page)).to_have_value('"Turing Award".^award_received.graduated_from')
    page.get_by_role("button", name="JSON").first.click()
    expect(question_of(page)).to_have_value(re.compile(r"^\[\d+,\[\d+,\d+\]\]$"))
    expect(page.get_by_role("button", name="graduated from: change")).to_be_visible()


def test_known_answers_and_guesses_can_be_told_apart_and_filtered(workbench: Opener) -> None:
    page = workbench().open("French.^speaks & Africa.^on_continent", k=50)
    expect(page.locator(".status.known").first).to_have_text("known")
    expect(page.locator(".status.predicted").first).to_have_text("guess")
    page.get_by_role("radio", name="Guesses").check(force=True)
    expect(page.locator(".status.known")).to_have_count(0)
    expect(page.locator(".status.predicted")).to_have_count(50)
    page.get_by_role("radio", name="Known").check(force=True)
    expect(page.locator(".status.predicted")).to_have_count(0)
    page.get_by_role("radio", name="All").check(force=True)
    page.get_by_label("Show").select_option("100")
    expect(answers_of(page)).to_have_count(100)
    page.get_by_role("slider", name="At least").fill("0.95")
    expect(page.locator(".status.predicted")).to_have_count(0)
    page.get_by_label("From", exact=True).select_option("exact")
    expect(page.locator("table.answers .particle-mark")).to_have_count(0)
    assert page.url.endswith("k=100&method=exact&minimum=0.95")


def test_evidence_shows_which_facts_are_stored(workbench: Opener) -> None:
    page = workbench().open(TURING)
    name = page.locator("button.answer").first
    name.click()
    expect(page.get_by_role("tab", name="Evidence")).to_have_attribute("aria-selected", "true")
    panel = page.get_by_role("tabpanel")
    expect(panel.get_by_role("heading", level=3)).to_have_text(name.inner_text())
    expect(panel.locator(".facts li")).to_have_count(3)
    expect(panel.locator(".facts li").last).to_contain_text("not")
    expect(panel.locator(".facts li").last).to_contain_text("50 %")
    assert dashes(panel, ".react-flow__edge-path.edge-stored") == {"none"}
    expect(panel.locator(".node.excluded")).to_contain_text("no stored path")


def test_guesses_are_folded_away_where_the_known_answers_look_complete(workbench: Opener, reasoner: Reasoner) -> None:
    expected = next(
        found
        for country in ("Iceland", "Japan", "Canada", "Norway", "Kenya", "Chile")
        if (found := reasoner.answer(f"{country}.on_continent")).complete
    )
    page = workbench().open(expected.question)
    known, guesses = [[one.label for one in some] for some in (expected.answers, expected.folded)]
    assert known
    assert len(guesses) > 1
    expect_answers(page, known)
    expect(page.locator(".summary")).to_contain_text(f"{len(known)} known;")
    expect(page.locator(".summary")).to_contain_text("complete.")
    button = page.get_by_role("button", name=f"Show {len(guesses)} guesses")
    expect(button).to_have_attribute("aria-expanded", "false")
    button.click()
    expect_answers(page, known + guesses)
    assert saved(page, "CSV").count("\r\n") == 1 + len(known) + len(guesses)
    page.locator("button.answer").last.click()
    expect(page.get_by_role("tabpanel").locator(".reasons li").first).to_be_visible()
    page.get_by_role("button", name=f"Hide {len(guesses)} guesses").click()
    expect_answers(page, known)
    question_of(page).fill("French.^speaks")
    expect(page.locator("button.answer").nth(9)).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("guesses$"))).to_have_count(0)


def test_guesses_rest_on_predicted_facts_drawn_dashed(workbench: Opener) -> None:
    page = workbench().open("French.^speaks", only="predicted")
    page.locator("button.answer").first.click()
    panel = page.get_by_role("tabpanel")
    expect(panel.locator(".facts li")).to_have_count(1)
    expect(panel.locator(".fact-status")).to_have_text(re.compile(r"^predicted .*%$"))
    expect(panel.locator(".edge-label b")).to_have_text(re.compile("%$"))
    assert "none" not in dashes(panel, ".react-flow__edge-path.edge-predicted")


def dashes(panel: Locator, edges: str) -> set[str]:
    expect(panel.locator(edges).first).to_be_attached()
    found: list[str] = panel.locator(edges).evaluate_all(
        "(all) => all.map((one) => getComputedStyle(one).strokeDasharray)"
    )
    return set(found)


def test_the_particle_map_shows_particles_and_answers(workbench: Opener, reasoner: Reasoner) -> None:
    page = workbench().open(TURING, k=100)
    points = page.locator(".map .point")
    expect(points).to_have_count(100)
    expected = reasoner.map(Question(TURING, k=100))
    expect(page.locator(".map .particle")).to_have_count(len(expected.particles))
    shapes: list[list[str]] = points.evaluate_all(
        """(all) => all.map((one) => [one.getAttribute('aria-label').split(', ').at(-1), one.querySelector('path')])
                      .map(([name, path]) => [name, path.getAttribute('d'), getComputedStyle(path).stroke])"""
    )
    kinds = {tuple(shape) for shape in shapes}
    assert (
        len({shape for _, shape, _ in kinds})
        == len({colour for *_, colour in kinds})
        == len({name for name, *_ in kinds})
    )
    assert [int(shape[0].removeprefix("particle ")) - 1 for shape in shapes] == [
        point.answer.particle for point in expected.points
    ]
    points.nth(2).hover()
    expect(page.locator(".map-says")).to_contain_text(expected.points[2].answer.label)
    points.nth(2).click()
    expect(page.get_by_role("heading", level=3)).to_have_text(expected.points[2].answer.label)


def test_a_link_brings_everything_back(workbench: Opener) -> None:
    first = workbench(permissions=["clipboard-read", "clipboard-write"]).open(TURING, only="predicted", k=20)
    expect(answers_of(first)).to_have_count(20)
    before = first.locator("button.answer").all_inner_texts()
    first.get_by_role("button", name="Copy link").click()
    expect(first.get_by_role("button", name="Link copied")).to_be_visible()
    link = first.evaluate("navigator.clipboard.readText()")
    second = workbench().page
    second.goto(link)
    expect(question_of(second)).to_have_value(TURING)
    expect_answers(second, before)
    expect(second.get_by_role("radio", name="Guesses")).to_be_checked()


def test_an_error_stands_under_the_right_word(workbench: Opener) -> None:
    # A letter beyond the first plane counts as one in Python and as two in JavaScript.
    wrong = 'Canada | "𝔘" | Canda.^citizen_of'
    page = workbench().open("Canada | Canda.^citizen_of")
    mark = page.locator(".mirror mark")
    expect(mark).to_have_text("Canda")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("no entity is called 'Canda'")
    word, arrow = mark.bounding_box(), page.locator(".problem-arrow").bounding_box()
    assert word is not None
    assert arrow is not None
    assert word["x"] <= arrow["x"] + arrow["width"] / 2 <= word["x"] + word["width"]
    assert word["y"] < arrow["y"]
    expect(question_of(page)).to_have_attribute("aria-invalid", "true")
    alert.get_by_role("button", name="Canada", exact=True).click()
    expect(question_of(page)).to_have_value("Canada | Canada.^citizen_of")
    expect(alert).to_have_count(0)
    question_of(page).fill(wrong)
    expect(mark).to_have_text('"𝔘"')
    question_of(page).fill('"Turing Award".^award_recieved')
    expect(mark).to_have_text("award_recieved")
    question_of(page).fill("Canada &")
    expect(alert).to_contain_text("ends too early")


def test_the_mark_lies_right_under_its_word(workbench: Opener) -> None:
    """The text and its underline are two layers, which must break their lines alike."""
    page = workbench().open(" | ".join(["Canada.^citizen_of"] * 9) + " | Canda.^citizen_of")
    expect(page.locator(".mirror mark")).to_have_text("Canda")
    area, mirror = question_of(page), page.locator(".mirror")
    assert area.evaluate("(one) => [one.clientWidth, one.scrollHeight]") == mirror.evaluate(
        "(one) => [one.clientWidth, one.scrollHeight]"
    )
    assert area.evaluate("(one) => one.scrollHeight") > 60, "it has more than one line"


def test_names_are_completed(workbench: Opener) -> None:
    page = workbench().open()
    area = question_of(page)
    area.press_sequentially('"turing aw')
    expect(page.get_by_role("option", name="Turing Award")).to_be_visible()
    area.press("Enter")
    expect(area).to_have_value('"Turing Award"')
    area.press_sequentially(".^award_r")
    page.get_by_role("option", name="award received").click()
    expect(area).to_have_value('"Turing Award".^award_received')
    area.press_sequentially(" & Germ")
    expect(page.get_by_role("option", name="Germany", exact=True)).to_be_visible()
    area.press("ArrowDown")
    area.press("Escape")
    expect(page.get_by_role("listbox", name="Names")).to_have_count(0)
    expect(area).to_have_value('"Turing Award".^award_received & Germ')


def test_enter_may_come_before_the_names_do(workbench: Opener) -> None:
    """Whoever types fast gets what was typed: neither nothing nor what an earlier list began with."""
    page = workbench().open()
    page.get_by_role("button", name="Start from an entity").click()
    offered = page.get_by_role("dialog").get_by_role("option")
    expect(offered.first).to_be_visible()
    expect(offered.filter(has_text="Swedish")).to_have_count(0)
    page.keyboard.type("swedish")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Swedish: change")).to_be_focused()


def test_the_keyboard_is_enough(workbench: Opener) -> None:
    page = workbench().open()
    keyboard, offered = page.keyboard, page.get_by_role("dialog").get_by_role("option")

    def tab_to(name: str) -> None:
        for _ in range(60):
            keyboard.press("Tab")
            focused = page.evaluate(
                "document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText"
            )
            if focused and name in focused:
                return
        pytest.fail(f"Tab never comes to {name}")

    def pick(text: str) -> None:
        keyboard.type(text)
        expect(offered.first).to_contain_text(re.compile(text, re.IGNORECASE))
        keyboard.press("Enter")

    expect(page.get_by_role("button", name="Start from an entity")).to_be_visible()
    tab_to("Start from an entity")
    keyboard.press("Enter")
    pick("french")
    expect(page.get_by_role("button", name="French: change")).to_be_focused()
    keyboard.press("Enter")
    keyboard.press("ArrowDown")
    keyboard.press("ArrowUp")
    keyboard.press("Enter")  # follow a relation
    expect(page.get_by_role("combobox", name="Follow which relation?")).to_be_focused()
    keyboard.type("speaks")
    expect(offered).to_have_count(2)
    keyboard.press("ArrowDown")
    keyboard.press("Enter")
    expect(question_of(page)).to_have_value("French.^speaks")
    expect(page.get_by_role("button", name="speaks, backwards: change")).to_be_focused()
    expect(answers_of(page)).to_have_count(10)
    # The map comes after the answers; until then that of the question before is there.
    first = page.locator("button.answer").first.inner_text()
    expect(page.locator(".map .point").first).to_have_attribute("aria-label", re.compile(f"^{re.escape(first)}:"))
    tab_to("Particle map")
    keyboard.press("Tab")
    keyboard.press("ArrowRight")
    expect(page.locator(".map-says b")).to_have_text(page.locator("button.answer").nth(1).inner_text())
    keyboard.press("Enter")
    expect(page.get_by_role("heading", level=3)).to_have_text(page.locator("button.answer").nth(1).inner_text())
    keyboard.press("Escape")
    page.locator("body").click(position={"x": 2, "y": 2})
    keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the answers")).to_be_focused()
    keyboard.press("Enter")
    keyboard.press("Tab")
    assert page.evaluate("document.getElementById('answers').contains(document.activeElement)")
    expect(question_of(page)).to_have_value("French.^speaks")


@pytest.mark.parametrize("name", ["first answer", "map", "error", "welcome"])
def test_a_phone_shows_everything_without_scrolling_sideways(workbench: Opener, name: str) -> None:
    watched = workbench(has_touch=True)
    watched.page.set_viewport_size({"width": 390, "height": 844})
    page = watched.open({"welcome": "", "error": "Canda." + "^citizen_of" * 9}.get(name, TURING))
    if name == "first answer":
        page.locator("button.answer").first.tap()
        heading = page.get_by_role("heading", level=3)
        expect(heading).to_be_in_viewport()
    elif name == "map":
        expect(page.locator(".map .point").first).to_be_visible()
    elif name == "error":
        expect(page.get_by_role("alert")).to_be_visible()
    else:
        page.get_by_role("button", name="Start from an entity").tap()
        expect(page.get_by_role("option").first).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    for node in page.locator(".question .node").all():
        box = node.bounding_box()
        assert box is not None
        assert 0 <= box["x"] <= 390 - box["width"]


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing_serious(workbench: Opener, colours: str) -> None:
    watched = workbench(color_scheme=colours)
    page = watched.open()
    expect(page.get_by_role("button", name="Start from an entity")).to_be_visible()
    assert watched.accessibility_problems() == []
    page.get_by_role("button", name="Start from an entity").click()
    expect(page.get_by_role("option").first).to_be_visible()
    assert watched.accessibility_problems() == []
    page = watched.open(TURING)
    expect(page.locator(".map .point").first).to_be_visible()
    assert watched.accessibility_problems() == []
    page.get_by_role("button", name="and: change").click()
    assert watched.accessibility_problems() == []
    page.keyboard.press("Escape")
    page.locator("button.answer").first.click()
    expect(page.locator(".facts li").first).to_be_visible()
    assert watched.accessibility_problems() == []
    question_of(page).fill("Canda")
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("Canda")
    assert watched.accessibility_problems() == []


def test_dark_and_light_are_remembered(workbench: Opener) -> None:
    watched = workbench(color_scheme="light")
    page = watched.open()
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Colours: auto").click()
    dark = page.evaluate(ground)
    assert sum(map(int, re.findall(r"\d+", dark))) < 150 < sum(map(int, re.findall(r"\d+", light)))
    page.reload()
    expect(page.get_by_role("button", name="Colours: dark")).to_be_visible()
    assert page.evaluate(ground) == dark
    page.get_by_role("button", name="Colours: dark").click()
    assert page.evaluate(ground) == light


def saved(page: Page, button: str) -> str:
    with page.expect_download() as download:
        page.get_by_role("group", name="Export").get_by_role("button", name=button).click()
    return Path(download.value.path()).read_bytes().decode()


def test_answers_are_saved_as_they_were_given(workbench: Opener, reasoner: Reasoner) -> None:
    page = workbench().open(TURING)
    expect(answers_of(page)).to_have_count(10)
    expected = reasoner.answer(Question(TURING)).as_json()
    document = json.loads(saved(page, "JSON"))
    assert {key: document[key] for key in expected} == expected
    rows = list(csv.DictReader(io.StringIO(saved(page, "CSV"), newline="")))
    assert [row["label"] for row in rows] == [answer["label"] for answer in expected["answers"]]
    assert [float(row["probability"]) for row in rows] == [answer["probability"] for answer in expected["answers"]]


def told(answers: list[dict[str, object]]) -> dict[str, object]:
    """What a server might say."""
    asked = {"question": "Canada", "query": "Canada", "shape": "e", "method": "both"}
    expected = {"expected_more": None, "complete": None}
    return {**asked, "total": len(answers), "answers": answers, "folded": [], **expected}


def test_formulas_in_names_are_defused_in_csv(workbench: Opener) -> None:
    watched = workbench()
    names = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", 'a "b", c']
    answers = [
        {"rank": rank, "name": name, "label": name, "status": "known", "probability": 1}
        for rank, name in enumerate(names, 1)
    ]
    body = told(answers)
    watched.page.route("**/v1/answer", lambda route: route.fulfill(json=body))
    page = watched.open("Canada")
    expect(answers_of(page)).to_have_count(len(names))
    rows = list(csv.DictReader(io.StringIO(saved(page, "CSV"), newline="")))
    assert [row["name"] for row in rows] == [f"'{name}" for name in names[:-1]] + names[-1:]


def test_names_are_never_taken_for_markup(workbench: Opener) -> None:
    watched = workbench()
    name = "<img src=x onerror=\"document.title='broken'\">"
    answers = [{"rank": 1, "name": name, "label": name, "status": "known", "probability": 1}]
    body = told(answers)
    watched.page.route("**/v1/answer", lambda route: route.fulfill(json=body))
    page = watched.open("Canada")
    expect(page.locator("button.answer")).to_have_text(name)
    assert page.title() == "query2particles"


def test_a_server_that_is_gone_is_said_so(workbench: Opener) -> None:
    page = workbench().open("French.^speaks")
    expect(answers_of(page)).to_have_count(10)
    page.context.set_offline(True)
    question_of(page).fill("German.^speaks")
    gone = page.get_by_role("alert")
    expect(gone).to_contain_text("The server does not answer")
    expect(page.get_by_text("These are the answers to the question before.")).to_be_visible()
    expect(answers_of(page)).to_have_count(10)
    page.context.set_offline(False)  # it is asked again by itself
    expect(gone).to_have_count(0)
    page.route("**/v1/*", lambda route: route.abort())
    question_of(page).fill("Dutch.^speaks")
    expect(gone).to_contain_text("The server does not answer")
    page.unroute("**/v1/*")
    gone.get_by_role("button", name="Try again").click()
    expect(gone).to_have_count(0)
    expect(page.locator(".stale")).to_have_count(0)


def test_a_server_with_keys_asks_for_one(workbench: Opener, guarded_site: str) -> None:
    watched = workbench(guarded_site)
    page = watched.open("French.^speaks")
    for key in ("a-wrong-key-of-this-length", KEY):
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Go on").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(answers_of(page)).to_have_count(10)
    page.reload()
    expect(answers_of(page)).to_have_count(10)


def test_a_graph_alone_has_answers_and_evidence_but_no_guesses(workbench: Opener, guarded_site: str) -> None:
    watched = workbench(guarded_site)
    watched.page.add_init_script(f"sessionStorage.setItem('query2particles.key', '{KEY}')")
    page = watched.open("French.^speaks")
    expect(answers_of(page)).to_have_count(10)
    expect(page.get_by_role("tab", name="Particle map")).to_have_count(0)
    expect(page.get_by_role("radio")).to_have_count(0)
    page.locator("button.answer").first.click()
    expect(page.locator(".facts li.stored")).to_have_count(1)
    assert watched.accessibility_problems() == []


def test_the_data_are_attributed(workbench: Opener) -> None:
    page = workbench().open()
    expect(page.get_by_role("contentinfo")).to_contain_text("GeoNames")
    expect(page.get_by_role("contentinfo")).to_contain_text("CC BY 4.0")


def test_the_first_load_is_small_and_from_here(site: str) -> None:
    with urlopen(site) as response:
        page = response.read().decode()
        policy = response.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    sources = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert all(source.startswith("./") or source == "docs" for source in sources)
    assert not re.search(r"<script(?![^>]*src=)|<style|style=", page), "nothing inline"
    loaded = [source for source in sources if source != "docs"]
    assert len(loaded) >= 3
    sizes = {source: transferred(f"{site}/{source.removeprefix('./')}") for source in loaded}
    assert sum(sizes.values()) + len(gzip.compress(page.encode())) < FIRST_LOAD, sizes


def transferred(address: str) -> int:
    with urlopen(Request(address, headers={"Accept-Encoding": "gzip"})) as response:
        body: bytes = response.read()
        assert response.headers.get("Content-Encoding") == "gzip"
        return len(body)


def test_no_registry_is_named_in_the_lock_file() -> None:
    lock = (Path(__file__).parents[2] / "web" / "package-lock.json").read_text("utf-8")
    assert '"resolved"' not in lock


def test_the_built_page_is_of_this_source() -> None:
    """A build that is older than its source would be tested in vain."""
    if not (STATIC / "index.html").is_file() or not shutil.which("npm"):
        pytest.skip("the page is not built, or cannot be built here: make page")
    sources = (Path(__file__).parents[2] / "web" / "src").rglob("*.ts*")
    newest = max(file.stat().st_mtime for file in sources if ".test." not in file.name)
    assert (STATIC / "index.html").stat().st_mtime >= newest, "run `make page`"
