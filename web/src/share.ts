/** What a link holds: the question and how its answers are asked for. It stands behind the #, so no server's log has it. */

export type Only = "known" | "predicted";
export type Method = "both" | "exact" | "neural" | "fast";

export interface Asked {
  readonly question: string;
  readonly k: number;
  readonly method: Method;
  readonly only: Only | null;
  /** From 0 to 1. */
  readonly minimum: number;
  /** The name of a run; null is the server's default. */
  readonly run: string | null;
}

export const NOTHING_ASKED: Asked = { question: "", k: 10, method: "both", only: null, minimum: 0, run: null };

export const AMOUNTS = [10, 20, 50, 100] as const;

export function toHash(asked: Asked): string {
  const parts = new URLSearchParams();
  if (asked.question) parts.set("q", asked.question);
  if (asked.k !== NOTHING_ASKED.k) parts.set("k", String(asked.k));
  if (asked.method !== NOTHING_ASKED.method) parts.set("method", asked.method);
  if (asked.only) parts.set("only", asked.only);
  if (asked.minimum > 0) parts.set("minimum", String(asked.minimum));
  if (asked.run) parts.set("run", asked.run);
  const written = parts.toString();
  return written && `#${written}`;
}

/** What is wrong or missing in a link is as if it had not been said. */
export function fromHash(hash: string): Asked {
  const parts = new URLSearchParams(hash.replace(/^#/u, ""));
  const k = Number(parts.get("k"));
  const minimum = Number(parts.get("minimum"));
  return {
    question: parts.get("q") ?? "",
    k: AMOUNTS.find((amount) => amount === k) ?? NOTHING_ASKED.k,
    method: oneOf(["both", "exact", "neural", "fast"], parts.get("method")) ?? NOTHING_ASKED.method,
    only: oneOf(["known", "predicted"], parts.get("only")),
    minimum: minimum > 0 && minimum <= 1 ? minimum : 0,
    run: parts.get("run"),
  };
}

function oneOf<Word extends string>(words: readonly Word[], said: string | null): Word | null {
  return words.find((word) => word === said) ?? null;
}
