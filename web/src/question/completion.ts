/** Which name is being written at the caret, of what kind, and what the text becomes when one is chosen. */

import { written } from "./path";

export type Kind = "entity" | "relation";

export interface Wanted {
  readonly kind: Kind;
  /** What stands of the name before the caret, without its quote. */
  readonly prefix: string;
  /** The piece of the text that a chosen name takes the place of. */
  readonly start: number;
  readonly end: number;
}

type Syntax = "path" | "logic" | "other";

const BARE = /[^\s.&|!^()"<>\\]/u;
const WORD = /[^\s.&|!()"<>\\,:=?]/u;

/** Nested JSON has ids in place of names, and SPARQL prefixes of its own: there nothing is completed. */
export function syntaxOf(text: string): Syntax {
  if (/^\s*\[/u.test(text) || /^\s*(#[^\n]*\n\s*)*(select|prefix|base|ask|construct|describe)\b/iu.test(text))
    return "other";
  return /^\s*\?\w*\s*:?/u.test(text) ? "logic" : "path";
}

export function wantedAt(text: string, caret: number): Wanted | null {
  const syntax = syntaxOf(text);
  if (syntax === "other") return null;
  const quote = openQuote(text, caret);
  const bare = syntax === "path" ? BARE : WORD;
  let start = quote ?? caret;
  let end = caret;
  if (quote === null) {
    while (start > 0 && bare.test(text[start - 1] ?? "")) start -= 1;
    while (end < text.length && bare.test(text[end] ?? "")) end += 1;
  } else {
    const rest = /^[^"\\\n.&|!^()]*"/u.exec(text.slice(caret));
    end += rest?.[0].length ?? 0;
  }
  const prefix = text.slice(quote === null ? start : start + 1, caret);
  const before = text.slice(0, start).trimEnd();
  const kind = syntax === "path" ? kindInPath(before) : kindInLogic(before, quote !== null);
  return kind && prefix.trim() ? { kind, prefix, start, end } : null;
}

export function completed(text: string, wanted: Wanted, name: string): { text: string; caret: number } {
  const inserted = written(name);
  return {
    text: text.slice(0, wanted.start) + inserted + text.slice(wanted.end),
    caret: wanted.start + inserted.length,
  };
}

function kindInPath(before: string): Kind | null {
  if (/\.\s*\^?$/u.test(before)) return "relation";
  return before === "" || /[&|!(]$/u.test(before) ? "entity" : null;
}

function kindInLogic(before: string, isQuoted: boolean): Kind | null {
  if (before.endsWith("=") || /[(,][^()]*,$/u.test(before) || /\w\s*\($/u.test(before)) return "entity";
  return !isQuoted && /[:&|!(.¬∧∨]$|\b(and|or|not)$/u.test(before) ? "relation" : null;
}

/** Where the quoted name that the caret stands in begins. */
function openQuote(text: string, caret: number): number | null {
  let open: number | null = null;
  for (let index = 0; index < caret; index += 1) {
    if (text[index] === "\\" && open !== null) index += 1;
    else if (text[index] === '"') open = open === null ? index : null;
    else if (text[index] === "\n") open = null;
  }
  return open;
}
