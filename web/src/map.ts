/** Fits the particle map into its drawing, and chooses the names that can be written without running into each other. */

import type { ParticleMap } from "./api";

export interface Frame {
  readonly width: number;
  readonly height: number;
  readonly margin: number;
}

export interface Spot {
  readonly x: number;
  readonly y: number;
}

/** From the coordinates of the map to those of the drawing: the same scale in both directions, upwards is up. */
export function projection(map: ParticleMap, frame: Frame): (spot: Spot) => Spot {
  const spots = [...map.answers, ...map.particles];
  const [left, right] = [Math.min(...spots.map(({ x }) => x)), Math.max(...spots.map(({ x }) => x))];
  const [low, high] = [Math.min(...spots.map(({ y }) => y)), Math.max(...spots.map(({ y }) => y))];
  const inner = { width: frame.width - 2 * frame.margin, height: frame.height - 2 * frame.margin };
  const scale = Math.min(inner.width / (right - left || 1), inner.height / (high - low || 1));
  const middle = { x: (left + right) / 2, y: (low + high) / 2 };
  return ({ x, y }) => ({
    x: frame.width / 2 + (x - middle.x) * scale,
    y: frame.height / 2 - (y - middle.y) * scale,
  });
}

/** Spots that lie over each other, moved to where each can be seen. */
export function apart<Place extends Spot>(spots: readonly Place[], distance: number): Place[] {
  const moved = spots.map((spot) => ({ ...spot, x: spot.x, y: spot.y }));
  for (let round = 0; round < 20; round += 1) {
    moved.forEach((one, index) => {
      for (const other of moved.slice(index + 1)) {
        const [dx, dy] = [other.x - one.x, other.y - one.y];
        const length = Math.hypot(dx, dy);
        if (length >= distance - 0.01) continue;
        const [ux, uy] = length > 0.01 ? [dx / length, dy / length] : [1, 0];
        const push = (distance - length) / 2;
        one.x -= ux * push;
        one.y -= uy * push;
        other.x += ux * push;
        other.y += uy * push;
      }
    });
  }
  return moved;
}

export interface Label {
  readonly name: string;
  readonly text: string;
  readonly x: number;
  readonly y: number;
  readonly isLeft: boolean;
}

const LETTER = 6.9; // about the width of a letter of the map's labels
const LINE = 14;
const LONGEST = 34;

/** Labels in order of importance; one that would cover a spot or an earlier label is left out. */
export function labels(
  points: readonly (Spot & { name: string; label: string })[],
  obstacles: readonly Spot[],
  frame: Frame,
): Label[] {
  const around =
    (size: number) =>
    ({ x, y }: Spot) => ({ left: x - size, right: x + size, top: y - size, bottom: y + size });
  const taken = [...points.map(around(7)), ...obstacles.map(around(15))];
  const chosen: Label[] = [];
  for (const { name, label, x, y } of points) {
    const text = label.length > LONGEST ? `${label.slice(0, LONGEST - 1)}…` : label;
    const width = text.length * LETTER;
    for (const isLeft of [false, true]) {
      const left = isLeft ? x - 11 - width : x + 11;
      const box = { left, right: left + width, top: y - LINE / 2, bottom: y + LINE / 2 };
      const isFree = taken.every(
        (other) => box.right < other.left || box.left > other.right || box.bottom < other.top || box.top > other.bottom,
      );
      if (isFree && box.left > 2 && box.right < frame.width - 2) {
        taken.push(box);
        chosen.push({ name, text, x: isLeft ? x - 11 : x + 11, y, isLeft });
        break;
      }
    }
  }
  return chosen;
}
