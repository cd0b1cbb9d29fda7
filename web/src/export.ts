/** Answers as a file. */

import type { Answered } from "./api";

const COLUMNS = ["rank", "name", "label", "status", "probability", "score", "particle"] as const;

export function toCsv(answered: Answered): string {
  const rows = answered.answers.map((answer) => COLUMNS.map((column) => cell(answer[column])));
  return [COLUMNS, ...rows].map((row) => `${row.join(",")}\r\n`).join("");
}

/** Text that a spreadsheet would take for a formula gets an apostrophe in front; numbers stay numbers. */
export function cell(value: string | number | null | undefined): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const safe = /^[=+\-@\t\r]/u.test(value) ? `'${value}` : value;
  return /[",\r\n\t]/u.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function saveAs(name: string, type: string, content: string): void {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  URL.revokeObjectURL(address);
}
