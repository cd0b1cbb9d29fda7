import { describe, expect, it } from "vitest";

import { pathText, written } from "./path";
import { anchor, type Tree } from "./tree";

const entity = (name: string) => anchor({ name, label: "another label" });

describe("a name in a question", () => {
  it.each([
    ["Canada", "Canada"],
    ["Turing Award", '"Turing Award"'],
    ["a.b", '"a.b"'],
    ["x:y", "x:y"],
    ["São", "São"],
    ['say "so"', '"say \\"so\\""'],
    ["back\\slash", '"back\\\\slash"'],
    ["?x", '"?x"'],
    ["[1]", '"[1]"'],
    ["#1", '"#1"'],
    ["-k", '"-k"'],
    ["select", '"select"'],
    ["selection", "selection"],
    ["line\nbreak", '"line\\u000abreak"'],
    ["zero\u200bwidth", '"zero\\u200bwidth"'],
    ["no\u00a0break", '"no\\u00a0break"'],
    ["tag\u{e0001}", '"tag\\U000e0001"'],
    ["", '""'],
  ])("%j is written %s", (name, text) => {
    expect(written(name)).toBe(text);
  });
});

describe("a tree as text", () => {
  const [a, b, c] = [entity("A"), entity("B"), entity("C")];
  const and = (...branches: Tree[]): Tree => ({ op: "intersect", branches });
  const or = (...branches: Tree[]): Tree => ({ op: "union", branches });
  const not = (branch: Tree): Tree => ({ op: "complement", branches: [branch] });
  const along = (branch: Tree, inverse = false): Tree => ({
    op: "project",
    relation: { name: "r", label: "R" },
    inverse,
    branches: [branch],
  });

  it.each<[Tree, string]>([
    [along(along(a), true), "A.r.^r"],
    [and(or(a, b), c), "(A | B) & C"],
    [or(and(a, b), c), "A & B | C"],
    [and(and(a, b), c), "(A & B) & C"],
    [or(or(a, b), c), "(A | B) | C"],
    [not(along(a)), "!A.r"],
    [along(not(a)), "(!A).r"],
    [not(not(a)), "!!A"],
    [not(and(a, b)), "!(A & B)"],
    [and(not(a), b), "!A & B"],
    [along(or(a, b), true), "(A | B).^r"],
  ])("has the brackets it needs: %#", (tree, text) => {
    expect(pathText(tree)).toBe(text);
  });
});
