import {
  BaseEdge,
  EdgeLabelRenderer,
  getBezierPath,
  Handle,
  Position,
  type Edge,
  type EdgeProps,
  type Node,
  type NodeProps,
} from "@xyflow/react";
import { useMemo } from "react";

import type { Evidence, Fact, Proof } from "../api";
import { complementsOf, evidenceGraph, factsOf, type EvidenceNode } from "../evidence";
import { layOut, widthFor, type Box } from "../layout";
import { percent, strongest } from "../wording";
import { arrow, Canvas, UNHEARD } from "./Canvas";
import { ProbabilityBar, StatusMark } from "./Marks";

/** Why an answer is one: its facts as a graph, and the same as a list. */
export function EvidencePanel({ evidence }: { readonly evidence: Evidence }) {
  const { nodes, edges, height, drawing } = useMemo(() => draw(evidence.tree), [evidence]);
  const facts = useMemo(() => factsOf(evidence.tree), [evidence]);
  const complements = useMemo(() => complementsOf(evidence.tree), [evidence]);
  const reasons = strongest(evidence.reasons);
  return (
    <div className="evidence">
      <div className="evidence-head">
        <h3>{evidence.answer.label}</h3>
        <StatusMark status={evidence.status} />
        {evidence.probability != null && <ProbabilityBar probability={evidence.probability} status={evidence.status} />}
      </div>
      {evidence.difference && <p className="note">{evidence.difference}</p>}
      {!evidence.complete && (
        <p className="note">
          No assignment explains this answer in full: some facts below are unlikely, or a condition fails.
        </p>
      )}
      <Canvas
        label={`Evidence for ${evidence.answer.label}`}
        nodes={nodes}
        edges={edges}
        nodeTypes={NODE_TYPES}
        corner="bottom-left"
        edgeTypes={EDGE_TYPES}
        height={Math.min(Math.max(height + 40, 160), 460)}
        drawing={drawing}
      />
      <ul className="legend">
        <li>
          <svg viewBox="0 0 28 8" aria-hidden="true">
            <path className="edge-stored" d="M0 4 H28" />
          </svg>
          stored fact
        </li>
        <li>
          <svg viewBox="0 0 28 8" aria-hidden="true">
            <path className="edge-predicted" d="M0 4 H28" />
          </svg>
          predicted fact
        </li>
      </ul>
      <h4>Facts it rests on</h4>
      <ol className="facts">
        {facts.map((fact, index) => (
          <FactLine key={index} fact={fact} />
        ))}
        {complements.map((complement, index) => (
          <li key={`not ${index}`} className={complement.holds ? "stored" : "predicted"}>
            <span>
              <b>not</b> {excluded(complement)}
            </span>
            <span className="fact-status">{verdict(complement)}</span>
          </li>
        ))}
      </ol>
      {reasons.length > 0 && (
        <>
          <h4>What speaks for it and against it, by the change of log odds</h4>
          <ul className="reasons">
            {reasons.map(([name, change]) => (
              <li key={name} className={change.startsWith("−") ? "against" : "for"}>
                <span>{name}</span>
                <span className="number">{change}</span>
              </li>
            ))}
          </ul>
        </>
      )}
    </div>
  );
}

function FactLine({ fact }: { readonly fact: Fact }) {
  return (
    <li className={fact.status}>
      <span>
        {fact.head.label} <em>{fact.relation.label}</em> {fact.tail.label}
      </span>
      <span className="fact-status">
        {fact.status}
        {fact.status === "predicted" && fact.probability != null && ` ${percent(fact.probability)}`}
      </span>
    </li>
  );
}

type Complement = Extract<Proof, { op: "complement" }>;

/** What a complement rules out, as well as its best counter-path tells. */
function excluded({ entity, branches }: Complement): string {
  const fact = branches.flatMap(factsOf).at(-1);
  return fact ? `${fact.head.label} ${fact.relation.label} ${fact.tail.label}` : `a path to ${entity.label}`;
}

function verdict({ holds, stored_path, counter_probability, threshold }: Complement): string {
  if (stored_path) return "stored facts say otherwise";
  if (counter_probability === null) return "no stored path";
  const compared = holds ? "below" : "not below";
  return `no stored path; best guess ${percent(counter_probability)}, ${compared} ${percent(threshold)}`;
}

function sizeOf(node: EvidenceNode): { width: number; height: number } {
  return node.kind === "entity" ? { width: widthFor(node.entity.label, 250), height: 44 } : { width: 200, height: 64 };
}

function draw(proof: Proof) {
  const root = evidenceGraph(proof);
  const boxOf = (node: EvidenceNode): Box => ({
    id: node.id,
    ...sizeOf(node),
    below: node.edges.map((edge) => boxOf(edge.from)),
  });
  const placed = layOut(boxOf(root), "down", { along: 64, beside: 22 });
  const nodes: Node[] = [];
  const edges: Edge[] = [];
  const walk = (node: EvidenceNode, isAgainst: boolean) => {
    nodes.push({
      id: node.id,
      type: node.kind,
      position: placed.corners.get(node.id) ?? { x: 0, y: 0 },
      ...sizeOf(node),
      data: { node, isAnswer: node === root, isAgainst },
    });
    for (const { from, fact } of node.edges) {
      const isDownward = from.kind === "entity" && fact?.head.name === from.entity.name;
      const head = arrow(fact?.status === "stored" ? "--ink" : "--accent");
      edges.push({
        id: from.id,
        source: from.id,
        target: node.id,
        type: "fact",
        data: { fact },
        domAttributes: UNHEARD,
        ...(fact && (isDownward ? { markerEnd: head } : { markerStart: { ...head, orient: "auto-start-reverse" } })),
      });
      walk(from, isAgainst || node.kind === "complement" || from.kind === "complement");
    }
  };
  walk(root, false);
  return { nodes, edges, height: placed.height, drawing: JSON.stringify([...placed.corners]) };
}

interface NodeData extends Record<string, unknown> {
  readonly node: EvidenceNode;
  readonly isAnswer: boolean;
  readonly isAgainst: boolean;
}

function Ends() {
  return (
    <>
      <Handle type="target" position={Position.Top} isConnectable={false} />
      <Handle type="source" position={Position.Bottom} isConnectable={false} />
    </>
  );
}

function EntityNode({ data: { node, isAnswer, isAgainst } }: NodeProps<Node<NodeData>>) {
  if (node.kind !== "entity") return null;
  const kind = isAnswer ? "is-answer" : node.given ? "anchor" : "inner";
  return (
    <>
      <div className={`node ${kind}${isAgainst ? " against" : ""}`} title={node.entity.name}>
        <span className="clipped">{node.entity.label}</span>
      </div>
      <Ends />
    </>
  );
}

function ComplementNode({ data: { node } }: NodeProps<Node<NodeData>>) {
  if (node.kind !== "complement") return null;
  return (
    <>
      <div className={node.proof.holds ? "node excluded" : "node excluded broken"}>
        <b>{node.proof.holds ? "not, as asked" : "not certain"}</b>
        <span>{verdict(node.proof)}</span>
      </div>
      <Ends />
    </>
  );
}

function FactEdge(props: EdgeProps<Edge<{ fact: Fact | null }>>) {
  const [path, x, y] = getBezierPath(props);
  const fact = props.data?.fact;
  const kind = fact ? fact.status : "none";
  return (
    <>
      <BaseEdge
        path={path}
        className={`edge-${kind}`}
        {...(props.markerStart && { markerStart: props.markerStart })}
        {...(props.markerEnd && { markerEnd: props.markerEnd })}
      />
      {fact && (
        <EdgeLabelRenderer>
          <div
            className={`edge-label ${kind}`}
            style={{ transform: `translate(-50%, -50%) translate(${x}px, ${y}px)` }}
          >
            {fact.relation.label}
            {fact.status === "predicted" && (
              <b className="number">{fact.probability == null ? "?" : percent(fact.probability)}</b>
            )}
          </div>
        </EdgeLabelRenderer>
      )}
    </>
  );
}

const NODE_TYPES = { entity: EntityNode, complement: ComplementNode };
const EDGE_TYPES = { fact: FactEdge };
