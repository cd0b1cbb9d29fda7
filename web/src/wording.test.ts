import { describe, expect, it } from "vitest";

import { expectation, percent, strongest } from "./wording";

describe("a probability", () => {
  it.each([
    [1, true, "100 %"],
    [1, false, "> 99 %"],
    [0.9949, false, "99 %"],
    [0.28, false, "28 %"],
    [0.0996, false, "10 %"],
    [0.0123, false, "1.2 %"],
    [0.001, false, "0.1 %"],
    [0.0009, false, "< 0.1 %"],
    [0, false, "< 0.1 %"],
  ])("of %j, certain %j, is %j", (probability, isCertain, words) => {
    expect(percent(probability, isCertain)).toBe(words.replaceAll(" ", "\u00a0"));
  });
});

describe("what is expected", () => {
  const nothing = { question: "q", query: "q", shape: "1p", method: "both", answers: [], folded: [] };
  it.each([
    [81, 0.2, true, "81 known; about 0.2 more expected: they look complete."],
    [1, 0.01, true, "1 known; less than 0.1 more expected: it looks complete."],
    [61, 9.9, false, "61 known; about 9.9 more expected."],
    [1234, 12.4, false, "1,234 known; about 12 more expected."],
    [0, 0.3, true, "Nothing known; about 0.3 expected: there is probably no answer."],
    [0, 2, false, "Nothing known; about 2.0 expected."],
    [2, null, null, "2 answers follow from stored facts."],
  ])("beside %j known ones, %j, complete %j", (total, expected_more, complete, words) => {
    expect(expectation({ ...nothing, total, expected_more, complete })).toBe(words);
  });
});

it("tells the strongest four reasons, with their signs", () => {
  const reasons = { "room for a tail": 2.24, relation: -1.96, "links: tail": 1.2, a: 0.5, b: 0.4 };
  expect(strongest(reasons)).toEqual([
    ["room for a tail", "+2.2"],
    ["relation", "−2.0"],
    ["links: tail", "+1.2"],
    ["a", "+0.5"],
  ]);
});
