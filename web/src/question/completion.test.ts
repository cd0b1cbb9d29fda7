import { describe, expect, it } from "vitest";

import { completed, wantedAt } from "./completion";
import { spanOf } from "./span";

/** The text up to the bar, which is the caret. */
const at = (marked: string) => wantedAt(marked.replace("|", ""), marked.indexOf("|"));

describe("what is wanted at the caret", () => {
  it.each([
    ["Cana|", "entity", "Cana"],
    ["Canada & Ger|", "entity", "Ger"],
    ["!Ca|", "entity", "Ca"],
    ["(Ca|", "entity", "Ca"],
    ["Canada.cit|", "relation", "cit"],
    ["Canada.^cit|", "relation", "cit"],
    ["Canada. ^ cit|", "relation", "cit"],
    ['"Turing Aw|', "entity", "Turing Aw"],
    ['A.^"award re|', "relation", "award re"],
    ["?x : citi|", "relation", "citi"],
    ["?x : citizen_of(?x, Can|", "entity", "Can"],
    ['?x : citizen_of(?x, "New Z|', "entity", "New Z"],
    ["?x : exists y. aw|", "relation", "aw"],
    ["?x : r(?x, A) & !s|", "relation", "s"],
    ["?x = Ca|", "entity", "Ca"],
  ])("%s", (marked, kind, prefix) => {
    expect(at(marked)).toMatchObject({ kind, prefix });
  });

  it.each(["|", "Canada.|", "Canada |", "[[0,[1|", "SELECT ?x { ?x :spe|", '"Turing Award"|', "Canada Ger|"])(
    "nothing in %s",
    (marked) => {
      expect(at(marked)).toBeNull();
    },
  );
});

describe("completing", () => {
  it.each([
    ["Canada & Ger| | B", "Germany", "Canada & Germany"],
    ['("Turing Aw|").^award_received', "Turing Award", '("Turing Award"'],
    ["Turi|.^award_received", "Turing Award", '"Turing Award"'],
    ["Canada.^ci|", "citizen_of", "Canada.^citizen_of"],
  ])("%s with %s", (marked, name, upToCaret) => {
    const caret = marked.indexOf("|");
    const text = marked.slice(0, caret) + marked.slice(caret + 1);
    const wanted = wantedAt(text, caret);
    if (!wanted) throw new Error("nothing wanted");
    const after = completed(text, wanted, name);
    expect(after.text.slice(0, after.caret)).toBe(upToCaret);
    expect(after.text.slice(after.caret)).toBe(text.slice(wanted.end));
  });
});

describe("the place of an error", () => {
  it("is counted in characters, not in UTF-16 units", () => {
    const text = "𝔘𝔘 & Canda";
    const { start, end } = spanOf(text, 5, 5);
    expect(text.slice(start, end)).toBe("Canda");
  });

  it("has at least one character, and may lie behind the end", () => {
    expect(spanOf("abc", 1, 0)).toEqual({ start: 1, end: 2 });
    expect(spanOf("abc", 3, 1)).toEqual({ start: 3, end: 3 });
  });
});
