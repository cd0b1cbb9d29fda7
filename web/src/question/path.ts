/** A tree as text in the path syntax: the same text that the server's own `format_path` writes. */

import type { Tree } from "./tree";

const PLAIN = /^(?![[?#-])[^\s.&|!^()"<>\\]+$/u;
const UNPRINTABLE = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u;
const LIKE_SPARQL = /^\s*(#[^\n]*\n\s*)*(select|prefix|base|ask|construct|describe)\b/iu;

export function pathText(tree: Tree): string {
  switch (tree.op) {
    case "anchor":
      return written(tree.entity.name);
    case "project":
      return `${within(tree.branches[0], ["union", "intersect", "complement"])}.${tree.inverse ? "^" : ""}${written(tree.relation.name)}`;
    case "complement":
      return `!${within(tree.branches[0], ["union", "intersect"])}`;
    case "intersect":
      return tree.branches.map((branch) => within(branch, ["union", "intersect"])).join(" & ");
    case "union":
      return tree.branches.map((branch) => within(branch, ["union"])).join(" | ");
  }
}

/** A name as it stands in a question: in quotes unless it is plain. */
export function written(name: string): string {
  return PLAIN.test(name) && !UNPRINTABLE.test(name) && !LIKE_SPARQL.test(name) ? name : quoted(name);
}

function within(tree: Tree, loose: readonly Tree["op"][]): string {
  return loose.includes(tree.op) ? `(${pathText(tree)})` : pathText(tree);
}

function quoted(name: string): string {
  const escaped = Array.from(name, (character) => {
    if (character === '"' || character === "\\") return `\\${character}`;
    if (!UNPRINTABLE.test(character)) return character;
    const code = character.codePointAt(0) ?? 0;
    const hexadecimal = code.toString(16);
    return code < 0x10000 ? `\\u${hexadecimal.padStart(4, "0")}` : `\\U${hexadecimal.padStart(8, "0")}`;
  });
  return `"${escaped.join("")}"`;
}
