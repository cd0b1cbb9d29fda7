import { Handle, Position, type Edge, type Node, type NodeProps } from "@xyflow/react";
import { useEffect, useMemo, useRef, useState } from "react";

import { useMedia } from "../hooks";
import { layOut, widthFor, type Box } from "../layout";
import { branchesOf, type Place, type Tree } from "../question/tree";
import { arrow, Canvas, UNHEARD } from "./Canvas";
import { NodeMenu } from "./NodeMenu";

interface QuestionGraphProps {
  readonly tree: Tree | null;
  readonly run: string | null;
  /** The text cannot be read, so the drawing is of an earlier question. */
  readonly isStale: boolean;
  edit(tree: Tree | null): void;
}

/** Where the menu is open: at a node, or (null) where the first entity is chosen. */
interface Opened {
  readonly place: Place | null;
  readonly button: HTMLElement;
}

const ANSWERS = "answers";
const START = "start";
const SMALL = 46;

export function QuestionGraph({ tree, run, isStale, edit }: QuestionGraphProps) {
  const isNarrow = useMedia("(max-width: 719px)");
  // The menu stays with the tree it was opened on, whatever arrives meanwhile.
  const [opened, setOpened] = useState<(Opened & { tree: Tree | null }) | null>(null);
  const [focused, setFocused] = useState<string | null>(null);
  const direction = isNarrow ? "down" : "across";

  const drawing = useMemo(() => {
    const root: Box = { id: ANSWERS, width: 92, height: SMALL, below: [tree ? boxOf(tree, []) : startBox()] };
    return layOut(root, direction, isNarrow ? { along: 30, beside: 14 } : { along: 44, beside: 18 });
  }, [tree, direction, isNarrow]);

  const { nodes, edges } = useMemo(() => {
    const nodes: Node<NodeData>[] = [];
    const edges: Edge[] = [];
    const add = (id: string, type: string, size: Size, data: Partial<NodeData>) =>
      nodes.push({
        id,
        type,
        position: drawing.corners.get(id) ?? { x: 0, y: 0 },
        ...size,
        data: {
          place: null,
          node: null,
          isDown: direction === "down",
          isFocused: id === focused,
          open: (at) => setOpened({ ...at, tree }),
          ...data,
        },
      });
    const connect = (source: string, target: string) =>
      edges.push({
        id: `${source}>${target}`,
        source,
        target,
        type: "smoothstep",
        markerEnd: arrow("--line-strong"),
        domAttributes: UNHEARD,
      });
    const walk = (node: Tree, place: Place, target: string) => {
      const id = idOf(place);
      add(id, "operator", sizeOf(node), { place, node });
      connect(id, target);
      branchesOf(node).forEach((branch, index) => walk(branch, [...place, index], id));
    };
    add(ANSWERS, "answers", { width: 92, height: SMALL }, {});
    if (tree) walk(tree, [], ANSWERS);
    else {
      add(START, "start", START_SIZE, {});
      connect(START, ANSWERS);
    }
    return { nodes, edges };
  }, [tree, drawing, direction, focused]);

  return (
    <div className={isStale && tree ? "question-graph stale" : "question-graph"}>
      {isStale && tree && <p className="caption">the question before</p>}
      <Canvas
        label="The question as a graph"
        nodes={nodes}
        edges={edges}
        nodeTypes={NODE_TYPES}
        corner="top-right"
        height={Math.min(Math.max(drawing.height + 60, 180), isNarrow ? 560 : 420)}
        drawing={JSON.stringify([...drawing.corners])}
      />
      {opened && (
        <NodeMenu
          tree={opened.tree}
          place={opened.place}
          button={opened.button}
          run={run}
          edit={(edited, place) => {
            setOpened(null);
            setFocused(place && edited ? idOf(place) : START);
            edit(edited);
          }}
          close={() => setOpened(null)}
        />
      )}
    </div>
  );
}

interface NodeData extends Record<string, unknown> {
  readonly place: Place | null;
  readonly node: Tree | null;
  readonly isDown: boolean;
  readonly isFocused: boolean;
  open(opened: Opened): void;
}

type Size = Readonly<{ width: number; height: number }>;

const START_SIZE: Size = { width: 232, height: SMALL };

function startBox(): Box {
  return { id: START, ...START_SIZE, below: [] };
}

function boxOf(tree: Tree, place: Place): Box {
  const below = branchesOf(tree).map((branch, index) => boxOf(branch, [...place, index]));
  return { id: idOf(place), ...sizeOf(tree), below };
}

function idOf(place: Place): string {
  return ["root", ...place].join(".");
}

/** As wide as its text asks for, about. */
function sizeOf(tree: Tree): Size {
  const [text] = namesOf(tree);
  if (tree.op !== "anchor" && tree.op !== "project") return { width: 68, height: SMALL };
  return { width: widthFor(tree.op === "project" ? `→ ${text}` : text, 240), height: SMALL };
}

const JOINT_WORD = { intersect: "and", union: "or", complement: "not" } as const;

function Operator({ data }: NodeProps<Node<NodeData>>) {
  const { node, place, isDown, isFocused, open } = data;
  const button = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (isFocused) button.current?.focus({ preventScroll: true });
  }, [isFocused]);
  if (!node) return null;
  const [text, title] = namesOf(node);
  return (
    <>
      <button
        ref={button}
        type="button"
        className={`node ${node.op}`}
        aria-haspopup="dialog"
        aria-label={`${title}: change`}
        title={title}
        onClick={(event) => open({ place, button: event.currentTarget })}
      >
        {node.op === "project" && <DirectionSign isInverse={node.inverse} />}
        <span className="clipped">{text}</span>
      </button>
      <Ends isDown={isDown} hasBranches={node.op !== "anchor"} />
    </>
  );
}

function namesOf(node: Tree): [text: string, title: string] {
  switch (node.op) {
    case "anchor":
      return [node.entity.label, node.entity.name];
    case "project":
      return [node.relation.label, `${node.relation.label}${node.inverse ? ", backwards" : ""}`];
    default:
      return [JOINT_WORD[node.op], JOINT_WORD[node.op]];
  }
}

export function DirectionSign({ isInverse }: { readonly isInverse: boolean }) {
  return (
    <span className="direction" aria-hidden="true">
      {isInverse ? "←" : "→"}
    </span>
  );
}

function Start({ data }: NodeProps<Node<NodeData>>) {
  const button = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (data.isFocused) button.current?.focus({ preventScroll: true });
  }, [data.isFocused]);
  return (
    <>
      <button
        ref={button}
        type="button"
        className="node start"
        aria-haspopup="dialog"
        onClick={(event) => data.open({ place: null, button: event.currentTarget })}
      >
        <span aria-hidden="true">+</span>
        <span className="clipped">Start from an entity</span>
      </button>
      <Ends isDown={data.isDown} hasBranches={false} />
    </>
  );
}

function Answers({ data }: NodeProps<Node<NodeData>>) {
  return (
    <>
      <div className="node answers">answers</div>
      <Handle type="target" position={data.isDown ? Position.Top : Position.Left} isConnectable={false} />
    </>
  );
}

function Ends({ isDown, hasBranches }: { readonly isDown: boolean; readonly hasBranches: boolean }) {
  return (
    <>
      {hasBranches && <Handle type="target" position={isDown ? Position.Top : Position.Left} isConnectable={false} />}
      <Handle type="source" position={isDown ? Position.Bottom : Position.Right} isConnectable={false} />
    </>
  );
}

const NODE_TYPES = { operator: Operator, start: Start, answers: Answers };
