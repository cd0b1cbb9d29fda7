/** A question as a tree of operators, and the edits that the graph offers. Every edit returns a new, complete tree. */

export interface Named {
  readonly name: string;
  readonly label: string;
}

export type Tree =
  | { readonly op: "anchor"; readonly entity: Named }
  | { readonly op: "project"; readonly relation: Named; readonly inverse: boolean; readonly branches: readonly [Tree] }
  | { readonly op: "intersect" | "union"; readonly branches: readonly Tree[] }
  | { readonly op: "complement"; readonly branches: readonly [Tree] };

export type Joining = "intersect" | "union";

/** The way from the root to a node: at each step the number of the branch. */
export type Place = readonly number[];

export interface Step {
  readonly relation: Named;
  readonly inverse: boolean;
}

export function branchesOf(tree: Tree): readonly Tree[] {
  return tree.op === "anchor" ? [] : tree.branches;
}

export function nodeAt(tree: Tree, place: Place): Tree {
  return place.reduce((node, branch) => {
    const below = branchesOf(node)[branch];
    if (!below) throw new RangeError(`no branch ${branch} below ${node.op}`);
    return below;
  }, tree);
}

export function anchor(entity: Named): Tree {
  return { op: "anchor", entity };
}

/** From the answers of the node at `place` on, along a relation. */
export function follow(tree: Tree, place: Place, step: Step): Tree {
  return changed(tree, place, (node) => ({ op: "project", ...step, branches: [node] }));
}

/** The node at `place` and (or or) a new branch that starts at `entity`; also tells where the new branch is. */
export function join(tree: Tree, place: Place, op: Joining, entity: Named): { tree: Tree; place: Place } {
  const above = place.slice(0, -1);
  const [joined, at] = nodeAt(tree, place).op === op ? [nodeAt(tree, place), place] : [parentOf(tree, place), above];
  if (joined?.op === op) {
    const branches = [...joined.branches, anchor(entity)];
    return { tree: changed(tree, at, () => ({ op, branches })), place: [...at, branches.length - 1] };
  }
  return { tree: changed(tree, place, (node) => ({ op, branches: [node, anchor(entity)] })), place: [...place, 1] };
}

/** What is not among the answers of the node at `place`; done twice, it is undone. */
export function negate(tree: Tree, place: Place): Tree {
  if (parentOf(tree, place)?.op === "complement") return negate(tree, place.slice(0, -1));
  return changed(tree, place, (node) =>
    node.op === "complement" ? node.branches[0] : { op: "complement", branches: [node] },
  );
}

export function replaceEntity(tree: Tree, place: Place, entity: Named): Tree {
  return changed(tree, place, () => anchor(entity));
}

export function replaceStep(tree: Tree, place: Place, step: Step): Tree {
  return changed(tree, place, (node) => (node.op === "project" ? { ...node, ...step } : node));
}

/** "and" becomes "or", "or" becomes "and". */
export function swapJoining(tree: Tree, place: Place): Tree {
  return changed(tree, place, (node) => {
    if (node.op !== "intersect" && node.op !== "union") return node;
    return { op: node.op === "union" ? "intersect" : "union", branches: node.branches };
  });
}

/** The tree without one node: a step or a complement closes up, an anchor or a joint takes its whole branch along. */
export function remove(tree: Tree, place: Place): Tree | null {
  const node = nodeAt(tree, place);
  if (node.op === "project" || node.op === "complement") return changed(tree, place, () => node.branches[0]);
  return removeBranch(tree, place);
}

function removeBranch(tree: Tree, place: Place): Tree | null {
  const branch = place.at(-1);
  if (branch === undefined) return null;
  const above = place.slice(0, -1);
  const parent = nodeAt(tree, above);
  if (parent.op !== "intersect" && parent.op !== "union") return removeBranch(tree, above);
  const left = parent.branches.filter((_, index) => index !== branch);
  const [only] = left;
  return changed(tree, above, () => (left.length === 1 && only ? only : { op: parent.op, branches: left }));
}

function parentOf(tree: Tree, place: Place): Tree | null {
  return place.length > 0 ? nodeAt(tree, place.slice(0, -1)) : null;
}

function changed(tree: Tree, place: Place, change: (node: Tree) => Tree): Tree {
  const [branch, ...further] = place;
  if (branch === undefined) return change(tree);
  const branches = branchesOf(tree).map((below, index) => (index === branch ? changed(below, further, change) : below));
  return { ...tree, branches } as Tree; // the same operator with as many branches as before
}
