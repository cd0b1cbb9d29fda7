/** Where an error stands. The server counts characters, JavaScript counts UTF-16 units. */

export interface Span {
  readonly start: number;
  readonly end: number;
}

export function spanOf(text: string, position: number, length: number): Span {
  const characters = Array.from(text);
  const start = characters.slice(0, position).join("").length;
  const end = start + characters.slice(position, position + Math.max(length, 1)).join("").length;
  return { start, end };
}
