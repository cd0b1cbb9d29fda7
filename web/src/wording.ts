/** How numbers and states are put into words everywhere on the page. */

import type { Status } from "./api";

export const STATUS_WORD: Record<Status, string> = { known: "known", supported: "supported", predicted: "guess" };

export const STATUS_MEANING: Record<Status, string> = {
  known: "Follows from stored facts.",
  supported: "Follows from stored facts, but a fact that is missing could take it back.",
  predicted: "The model's guess: stored facts do not lead here.",
};

export function percent(probability: number): string {
  if (probability > 0 && probability < 0.005) return "< 1 %";
  if (probability < 1 && probability >= 0.995) return "> 99 %";
  return `${Math.round(probability * 100)} %`;
}

export function count(amount: number, one: string, many: string): string {
  return `${amount.toLocaleString("en")} ${amount === 1 ? one : many}`;
}

/** Particles are counted from 1 where people read them. */
export function particleName(particle: number): string {
  return `particle ${particle + 1}`;
}

export const SYNTAX_WORD: Record<string, string> = { path: "path", logic: "logic", json: "JSON", sparql: "SPARQL" };
