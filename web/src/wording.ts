/** How numbers and states are put into words everywhere on the page. */

import type { Answered, Evidence, Status } from "./api";

export const STATUS_WORD: Record<Status, string> = { known: "known", supported: "supported", predicted: "guess" };

export const STATUS_MEANING: Record<Status, string> = {
  known: "Follows from stored facts.",
  supported: "Follows from stored facts, but a fact that is missing could take it back.",
  predicted: "The model's guess: stored facts do not lead here.",
};

/** As the command line says it (wording.py): 100 % stands for what is certain alone. No line breaks within it. */
export function percent(probability: number, isCertain = false): string {
  return inPercent(probability, isCertain).replaceAll(" ", "\u00a0");
}

function inPercent(probability: number, isCertain: boolean): string {
  if (isCertain) return "100 %";
  if (probability >= 0.995) return "> 99 %";
  if (probability < 0.001) return "< 0.1 %";
  return `${(probability * 100).toFixed(probability >= 0.0995 ? 0 : 1)} %`;
}

/** How many answers stored facts name, and how many more there probably are. */
export function expectation({ total, expected_more: more, complete }: Answered): string {
  if (more === null) return `${count(total, "answer follows", "answers follow")} from stored facts.`;
  const amount =
    more < 0.05 ? "less than 0.1" : `about ${more < 9.95 ? more.toFixed(1) : Math.round(more).toLocaleString("en")}`;
  if (total === 0) return `Nothing known; ${amount} expected${complete ? ": there is probably no answer" : ""}.`;
  const verdict = complete ? `: ${total === 1 ? "it looks" : "they look"} complete` : "";
  return `${total.toLocaleString("en")} known; ${amount} more expected${verdict}.`;
}

/** The strongest of the reasons for the probability of a fact, with the change of its log odds that each makes. */
export function strongest(reasons: Evidence["reasons"]): [name: string, change: string][] {
  return Object.entries(reasons)
    .slice(0, 4)
    .map(([name, change]) => [name, `${change < 0 ? "−" : "+"}${Math.abs(change).toFixed(1)}`]);
}

export function count(amount: number, one: string, many: string): string {
  return `${amount.toLocaleString("en")} ${amount === 1 ? one : many}`;
}

/** Particles are counted from 1 where people read them. */
export function particleName(particle: number): string {
  return `particle ${particle + 1}`;
}

export const SYNTAX_WORD: Record<string, string> = { path: "path", logic: "logic", json: "JSON", sparql: "SPARQL" };
