import { describe, expect, it } from "vitest";

import { cell, toCsv } from "./export";
import { fromHash, NOTHING_ASKED, toHash, type Asked } from "./share";

describe("a cell of CSV", () => {
  it.each([
    ["=1+1", "'=1+1"],
    ["+1", "'+1"],
    ["-1", "'-1"],
    ["@SUM(A1)", "'@SUM(A1)"],
    ["\tx", '"\'\tx"'],
    ["\rx", '"\'\rx"'],
    ['=HYPERLINK("x","y")', '"\'=HYPERLINK(""x"",""y"")"'],
    ["a,b", '"a,b"'],
    ['say "so"', '"say ""so"""'],
    ["two\nlines", '"two\nlines"'],
    ["1 = 1", "1 = 1"],
    [-1.5, "-1.5"],
    [null, ""],
    [undefined, ""],
  ])("%j becomes %j", (value, text) => {
    expect(cell(value)).toBe(text);
  });

  it("stands in its column", () => {
    const answers = [
      { rank: 1, name: "=a", label: "A, B", status: "predicted" as const, probability: 0.5, score: -1, particle: 0 },
    ];
    const answered = {
      question: "q",
      query: "q",
      shape: "1p",
      method: "both",
      total: 0,
      expected_more: 0,
      complete: true,
      answers,
      folded: [],
    };
    expect(toCsv(answered)).toBe(
      'rank,name,label,status,probability,score,particle\r\n1,\'=a,"A, B",predicted,0.5,-1,0\r\n',
    );
  });
});

describe("a link", () => {
  it.each<Asked>([
    NOTHING_ASKED,
    { ...NOTHING_ASKED, question: '("Turing Award".^award_received & !Canada.^citizen_of).graduated_from' },
    { question: "100 % #?&+ é 𝔘\nsecond line", k: 50, method: "neural", only: "predicted", minimum: 0.25, run: "a b" },
  ])("holds what was asked: %#", (asked) => {
    expect(fromHash(toHash(asked))).toEqual(asked);
  });

  it("is empty while nothing is asked", () => {
    expect(toHash(NOTHING_ASKED)).toBe("");
  });

  it.each(["#k=7&method=magic&only=some&minimum=2", "#k=1e9&minimum=-1", "#minimum=abc&k=", "#%zz"])(
    "that is wrong says nothing: %s",
    (hash) => {
      expect(fromHash(hash)).toEqual(NOTHING_ASKED);
    },
  );
});
