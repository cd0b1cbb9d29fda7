/** A proof as the graph of its facts: an entity a node, a fact an edge, the answer at the root. */

import type { Fact, Proof } from "./api";
import type { Named } from "./question/tree";

type Complement = Extract<Proof, { op: "complement" }>;

export type EvidenceNode = {
  readonly id: string;
  readonly edges: readonly EvidenceEdge[];
} & (
  | { readonly kind: "entity"; readonly entity: Named; readonly given: boolean }
  | { readonly kind: "complement"; readonly proof: Complement }
);

/** What leads into a node; `fact` is null where a complement does. */
export interface EvidenceEdge {
  readonly from: EvidenceNode;
  readonly fact: Fact | null;
}

/** Branches of an "and" end in the same entity, so they are drawn into one node. */
export function evidenceGraph(proof: Proof, id = "answer"): EvidenceNode {
  return { id, kind: "entity", entity: proof.entity, given: isGiven(proof), edges: edgesInto(proof, id) };
}

function edgesInto(proof: Proof, id: string): EvidenceEdge[] {
  switch (proof.op) {
    case "anchor":
      return [];
    case "project":
      return proof.branches.map((branch, index) => ({
        from: evidenceGraph(branch, `${id}.${index}`),
        fact: proof.fact,
      }));
    case "complement": {
      const edges = proof.branches.flatMap((branch, index) => edgesInto(branch, `${id}.${index}`));
      return [{ from: { id: `${id}.not`, kind: "complement", proof, edges }, fact: null }];
    }
    default:
      return proof.branches.flatMap((branch, index) => edgesInto(branch, `${id}.${index}`));
  }
}

function isGiven(proof: Proof): boolean {
  if (proof.op === "anchor") return true;
  return (proof.op === "intersect" || proof.op === "union") && proof.branches.some(isGiven);
}

/** Every fact that the answer rests on, those nearest to the anchors first; what a complement rules out is not among them. */
export function factsOf(proof: Proof): Fact[] {
  if (proof.op === "anchor" || proof.op === "complement") return [];
  const below = proof.branches.flatMap(factsOf);
  return proof.op === "project" ? [...below, proof.fact] : below;
}

export function complementsOf(proof: Proof): Complement[] {
  if (proof.op === "anchor") return [];
  return proof.op === "complement" ? [proof] : proof.branches.flatMap(complementsOf);
}
