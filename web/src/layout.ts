/** Places the nodes of a tree: the root last, its branches before it, no two over each other. */

export interface Box {
  readonly id: string;
  readonly width: number;
  readonly height: number;
  readonly below: readonly Box[];
}

/** across: from left to right; down: from top to bottom. */
export type Direction = "across" | "down";

export interface Placed {
  readonly corners: ReadonlyMap<string, { x: number; y: number }>;
  readonly width: number;
  readonly height: number;
}

export interface Gaps {
  /** Between a node and what stands before it. */
  readonly along: number;
  /** Between the branches of a node. */
  readonly beside: number;
}

export function layOut(root: Box, direction: Direction, gaps: Gaps): Placed {
  const along = (box: Box) => (direction === "across" ? box.width : box.height);
  const beside = (box: Box) => (direction === "across" ? box.height : box.width);

  const levels: Box[][] = [];
  const centres = new Map<string, number>();
  let edge = 0;
  const centreOf = (box: Box) => centres.get(box.id) ?? 0;
  const shift = (box: Box, by: number): void => {
    centres.set(box.id, centreOf(box) + by);
    for (const branch of box.below) shift(branch, by);
  };
  /** Leaves stand side by side; whatever has branches stands in their middle. */
  const place = (box: Box, depth: number): void => {
    (levels[depth] ??= []).push(box);
    const start = edge;
    for (const branch of box.below) place(branch, depth + 1);
    const inner = box.below.map(centreOf);
    const half = beside(box) / 2;
    const middle = inner.length > 0 ? (Math.min(...inner) + Math.max(...inner)) / 2 : start + half;
    centres.set(box.id, middle);
    const missing = Math.max(start + half - middle, 0); // a box that is wider than its branches moves them along
    if (missing > 0) shift(box, missing);
    edge = Math.max(edge + missing, middle + missing + half + gaps.beside);
  };
  place(root, 0);

  const corners = new Map<string, { x: number; y: number }>();
  let far = 0;
  for (const level of levels.toReversed()) {
    const thickness = Math.max(...level.map(along));
    for (const box of level) {
      const first = far + (thickness - along(box)) / 2;
      const second = centreOf(box) - beside(box) / 2;
      corners.set(box.id, direction === "across" ? { x: first, y: second } : { x: second, y: first });
    }
    far += thickness + gaps.along;
  }
  const [length, breadth] = [far - gaps.along, edge - gaps.beside];
  return direction === "across"
    ? { corners, width: length, height: breadth }
    : { corners, width: breadth, height: length };
}

/** How wide a box has to be for a text, about: where text is measured depends on the fonts of a machine. */
export function widthFor(text: string, most: number): number {
  return Math.min(Math.max(text.length * 8.8 + 48, 100), most);
}
