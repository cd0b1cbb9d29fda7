import {
  Controls,
  MarkerType,
  ReactFlow,
  ReactFlowProvider,
  useReactFlow,
  useStore,
  type Edge,
  type EdgeMarker,
  type EdgeTypes,
  type Node,
  type NodeTypes,
  type PanelPosition,
} from "@xyflow/react";
import { useEffect } from "react";

import { useMedia } from "../hooks";

/** The head of an edge, in one of the colours of the page. */
export function arrow(colour: string): EdgeMarker {
  return {
    type: MarkerType.ArrowClosed,
    width: 18,
    height: 18,
    markerUnits: "userSpaceOnUse",
    color: `var(${colour})`,
  };
}

/** For edges: a screen reader hears the same from the text beside the drawing. */
export const UNHEARD = { "aria-hidden": true } as const;

interface CanvasProps {
  readonly label: string;
  readonly nodes: Node[];
  readonly edges: Edge[];
  readonly nodeTypes: NodeTypes;
  readonly edgeTypes?: EdgeTypes;
  readonly height: number;
  /** The corner that the drawing leaves free. */
  readonly corner: PanelPosition;
  /** Changes whenever the drawing should be brought into view again. */
  readonly drawing: string;
}

/** A drawing of nodes and edges that is looked at and clicked, never rearranged by hand. */
export function Canvas({ label, nodes, edges, nodeTypes, edgeTypes, height, corner, drawing }: CanvasProps) {
  // A finger on the drawing scrolls the page; where there is a mouse, and room, it moves the drawing.
  const hasMouse = useMedia("(pointer: fine) and (min-width: 720px)");
  return (
    <div className="canvas" role="group" aria-label={label} style={{ height }}>
      <ReactFlowProvider>
        <ReactFlow
          nodes={nodes}
          edges={edges}
          nodeTypes={nodeTypes}
          {...(edgeTypes && { edgeTypes })}
          minZoom={0.3}
          maxZoom={1.5}
          nodesDraggable={false}
          nodesConnectable={false}
          nodesFocusable={false}
          edgesFocusable={false}
          elementsSelectable={false}
          disableKeyboardA11y
          panOnDrag={hasMouse}
          zoomOnScroll={false}
          zoomOnDoubleClick={false}
          preventScrolling={false}
        >
          <Fit drawing={drawing} />
          {hasMouse && (
            <Controls showInteractive={false} position={corner} orientation="horizontal" fitViewOptions={FITTED} />
          )}
        </ReactFlow>
      </ReactFlowProvider>
    </div>
  );
}

const FITTED = { padding: 0.08, maxZoom: 1 };

function Fit({ drawing }: { readonly drawing: string }) {
  const { fitView } = useReactFlow();
  const size = useStore(({ width, height }) => `${width} ${height}`);
  useEffect(() => {
    const frame = requestAnimationFrame(() => void fitView(FITTED));
    return () => cancelAnimationFrame(frame);
  }, [drawing, size, fitView]);
  return null;
}
