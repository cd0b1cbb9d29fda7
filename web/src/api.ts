/** The server's JSON, and the one way to ask for it. */

import type { Asked } from "./share";
import type { Named, Tree } from "./question/tree";

export type Status = "known" | "supported" | "predicted";

export interface Answer extends Named {
  readonly rank: number;
  readonly status?: Status;
  readonly score?: number | null;
  readonly probability?: number | null;
  readonly particle?: number | null;
}

export interface Answered {
  readonly question: string;
  readonly query: string;
  readonly shape: string;
  readonly method: string;
  readonly total: number;
  /** How many answers beside those are expected; null where nothing was calibrated. */
  readonly expected_more: number | null;
  /** Less than half an answer is expected beside the known ones. */
  readonly complete: boolean | null;
  readonly answers: readonly Answer[];
  /** Guesses that are not among the answers, since the known ones look complete. */
  readonly folded: readonly Answer[];
  readonly warning?: string | null;
}

export interface Parsed {
  readonly syntax: string;
  readonly shape: string;
  readonly ast: Tree;
  readonly canonical: { readonly path: string; readonly logic: string; readonly json: string };
}

export interface Fact {
  readonly head: Named;
  readonly relation: Named;
  readonly tail: Named;
  readonly status: "stored" | "predicted";
  readonly probability: number | null;
  readonly score: number | null;
}

export type Proof =
  | { readonly op: "anchor"; readonly entity: Named }
  | { readonly op: "project"; readonly entity: Named; readonly fact: Fact; readonly branches: readonly Proof[] }
  | { readonly op: "intersect" | "union"; readonly entity: Named; readonly branches: readonly Proof[] }
  | {
      readonly op: "complement";
      readonly entity: Named;
      readonly holds: boolean;
      readonly stored_path: boolean;
      readonly counter_probability: number | null;
      readonly threshold: number;
      readonly branches: readonly Proof[];
    };

export interface Evidence {
  readonly question: string;
  readonly query: string;
  readonly answer: Named;
  readonly status: Status;
  readonly probability: number | null;
  readonly worth: number;
  /** Why the probability is not what the facts are worth, in a sentence; null where they agree. */
  readonly difference: string | null;
  /** Of a single predicted fact: how much each feature moves its log odds, the largest first. */
  readonly reasons: Readonly<Record<string, number>>;
  readonly threshold: number;
  readonly complete: boolean;
  readonly tree: Proof;
}

export interface MapPoint extends Named {
  readonly x: number;
  readonly y: number;
  readonly particle: number;
  readonly status: Status;
  readonly probability: number | null;
  readonly rank: number;
}

export interface ParticleMap {
  readonly answers: readonly MapPoint[];
  readonly particles: readonly { particle: number; x: number; y: number; answers: number }[];
  readonly variance: readonly number[];
}

export interface About {
  readonly name: string;
  readonly description?: string | null;
  readonly entities: number;
  readonly relations: number;
  readonly facts: number;
  readonly attribution?: string | null;
  readonly licence?: string | null;
}

export interface Example {
  readonly words: string;
  readonly syntax: string;
  readonly text: string;
}

export interface RelationFound extends Named {
  readonly facts?: number;
}

export interface RunFound {
  readonly name: string;
  readonly graph: string;
  readonly method: string | null;
  readonly calibrated: boolean;
}

export class ServerError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly position: number | null = null,
    readonly length = 1,
    readonly suggestions: readonly string[] = [],
  ) {
    super(message);
  }
}

/** The server cannot be reached at all. */
export class OfflineError extends Error {}

const KEY = "query2particles.key";

let apiKey = sessionStorage.getItem(KEY);

export function rememberKey(key: string): void {
  apiKey = key;
  sessionStorage.setItem(KEY, key);
}

async function ask<Result>(path: string, body?: object, signal?: AbortSignal): Promise<Result> {
  const headers: Record<string, string> = { Accept: "application/json" };
  if (apiKey) headers["Authorization"] = `Bearer ${apiKey}`;
  if (body) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method: body ? "POST" : "GET",
      headers,
      ...(body && { body: JSON.stringify(body) }),
      ...(signal && { signal }),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new OfflineError("The server does not answer.");
  }
  const content = await response.json().catch(() => null);
  if (response.ok && content) return content as Result;
  const said = content?.error ?? {};
  throw new ServerError(
    response.status,
    said.code ?? "internal",
    said.message ?? `The server answered with status ${response.status}.`,
    said.position ?? null,
    said.length ?? 1,
    said.suggestions ?? [],
  );
}

function address(path: string, parameters: Record<string, string | number | null>): string {
  const said = Object.entries(parameters).flatMap(([name, value]) => (value === null ? [] : [[name, String(value)]]));
  return `${path}?${new URLSearchParams(said)}`;
}

type Signal = AbortSignal | undefined;
type Run = string | null;

const withRun = (run: Run) => (run === null ? {} : { run });

export const api = {
  parse: (question: string, run: Run, signal?: Signal) =>
    ask<Parsed>("v1/parse", { question, ...withRun(run) }, signal),
  answer: (asked: Asked, signal?: Signal) =>
    ask<Answered>(
      "v1/answer",
      {
        question: asked.question,
        k: asked.k,
        method: asked.method,
        ...(asked.only && { only: asked.only }),
        ...(asked.minimum > 0 && { minimum_probability: asked.minimum }),
        ...withRun(asked.run),
      },
      signal,
    ),
  explain: (question: string, answer: string, run: Run, signal?: Signal) =>
    ask<Evidence>("v1/explain", { question, answer, ...withRun(run) }, signal),
  map: (question: string, k: number, run: Run, signal?: Signal) =>
    ask<ParticleMap>("v1/map", { question, k, ...withRun(run) }, signal),
  entities: (prefix: string, run: Run, signal?: Signal) =>
    ask<{ entities: Named[] }>(address("v1/entities", { prefix, limit: 8, run }), undefined, signal).then(
      (found) => found.entities,
    ),
  relations: (prefix: string, run: Run, signal?: Signal) =>
    ask<{ relations: RelationFound[] }>(address("v1/relations", { prefix, limit: 30, run }), undefined, signal).then(
      (found) => found.relations,
    ),
  graph: (run: Run) => ask<About>(address("v1/graph", { run })),
  examples: (run: Run) => ask<{ examples: Example[] }>(address("v1/examples", { run })).then((found) => found.examples),
  runs: () => ask<{ runs: RunFound[]; default: string | null }>("v1/runs"),
};
