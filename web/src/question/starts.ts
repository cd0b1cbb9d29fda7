/** What to start from before anything is typed: the entities that the example questions start from. */

import { api } from "../api";
import { branchesOf, type Named, type Tree } from "./tree";

const remembered = new Map<string | null, Promise<Named[]>>();

export function startingPoints(run: string | null): Promise<Named[]> {
  const found = remembered.get(run) ?? ofExamples(run);
  remembered.set(run, found);
  found.catch(() => remembered.delete(run)); // the next time it may work
  return found;
}

async function ofExamples(run: string | null): Promise<Named[]> {
  const examples = await api.examples(run);
  const parsed = await Promise.all(examples.map(({ text }) => api.parse(text, run)));
  const anchors = new Map(parsed.flatMap(({ ast }) => anchorsOf(ast)).map((entity) => [entity.name, entity]));
  return anchors.size > 0 ? [...anchors.values()] : api.entities("", run);
}

export function anchorsOf(tree: Tree): Named[] {
  return tree.op === "anchor" ? [tree.entity] : branchesOf(tree).flatMap(anchorsOf);
}
