import { useEffect, useLayoutEffect, useRef, useState, type KeyboardEvent } from "react";

import {
  anchor,
  follow,
  join,
  negate,
  nodeAt,
  remove,
  replaceEntity,
  replaceStep,
  swapJoining,
  type Named,
  type Place,
  type Step,
  type Tree,
} from "../question/tree";
import { EntityPicker, RelationPicker } from "./Picker";

interface NodeMenuProps {
  readonly tree: Tree | null;
  readonly place: Place | null;
  readonly button: HTMLElement;
  readonly run: string | null;
  /** Takes the new tree, and the node to go on from. */
  edit(tree: Tree | null, place: Place | null): void;
  close(): void;
}

/** One line of the menu: it changes the tree at once, or after a name is chosen. */
type Choice = { readonly label: string; readonly isApart?: boolean } & (
  | { readonly kind: "now"; change(): [Tree | null, Place | null] }
  | { readonly kind: "entity"; readonly heading: string; change(entity: Named): [Tree, Place] }
  | { readonly kind: "relation"; readonly heading: string; change(step: Step): [Tree, Place] }
);

/** What can be done at a node of the question: a menu, and behind some of its lines a search for a name. */
export function NodeMenu({ tree, place, button, run, edit, close }: NodeMenuProps) {
  const popover = useRef<HTMLDivElement>(null);
  const [chosen, setChosen] = useState<Choice | null>(tree ? null : first());
  const choices = tree && place ? choicesAt(tree, place) : [];

  // Before other effects: nothing in it can be focused until it is shown.
  useLayoutEffect(() => {
    const element = popover.current;
    element?.showPopover();
    const listen = (event: ToggleEvent) => event.newState === "closed" && close();
    element?.addEventListener("toggle", listen);
    return () => element?.removeEventListener("toggle", listen);
    // oxlint-disable-next-line react-hooks/exhaustive-deps -- opened once, when it appears
  }, []);

  useLayoutEffect(() => {
    if (popover.current) putBelow(popover.current, button);
  }, [button, chosen]);

  const done = ([edited, next]: [Tree | null, Place | null]) => {
    popover.current?.hidePopover();
    edit(edited, next);
  };

  return (
    <div
      ref={popover}
      popover="auto"
      className="menu"
      role="dialog"
      aria-label={chosen && chosen.kind !== "now" ? chosen.heading : "Change the question"}
    >
      {chosen?.kind === "entity" && (
        <EntityPicker heading={chosen.heading} run={run} pick={(entity) => done(chosen.change(entity))} />
      )}
      {chosen?.kind === "relation" && (
        <RelationPicker heading={chosen.heading} run={run} pick={(step) => done(chosen.change(step))} />
      )}
      {!chosen && (
        <Choices
          choices={choices}
          choose={(choice) => (choice.kind === "now" ? done(choice.change()) : setChosen(choice))}
        />
      )}
    </div>
  );
}

function Choices({ choices, choose }: { readonly choices: readonly Choice[]; choose(choice: Choice): void }) {
  const menu = useRef<HTMLDivElement>(null);
  useEffect(() => menu.current?.querySelector("button")?.focus(), []);
  const move = (event: KeyboardEvent) => {
    const items = [...(menu.current?.querySelectorAll("button") ?? [])];
    const at = items.indexOf(document.activeElement as HTMLButtonElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    items.at(to % items.length)?.focus();
  };
  return (
    <div ref={menu} role="menu" aria-label="Change the question" tabIndex={-1} onKeyDown={move}>
      {choices.map((choice) => (
        <button
          key={choice.label}
          type="button"
          role="menuitem"
          className={choice.isApart ? "choice apart" : "choice"}
          onClick={() => choose(choice)}
        >
          {choice.label}
        </button>
      ))}
    </div>
  );
}

function first(): Choice {
  return {
    kind: "entity",
    label: "Start",
    heading: "Start from which entity?",
    change: (entity) => [anchor(entity), []],
  };
}

function choicesAt(tree: Tree, place: Place): Choice[] {
  const node = nodeAt(tree, place);
  const joining = (op: "intersect" | "union"): Choice => ({
    kind: "entity",
    label: op === "intersect" ? "And …" : "Or …",
    heading: op === "intersect" ? "And also, starting from …" : "Or else, starting from …",
    change: (entity) => {
      const joined = join(tree, place, op, entity);
      return [joined.tree, joined.place];
    },
  });
  const isNegated =
    node.op === "complement" || (place.length > 0 && nodeAt(tree, place.slice(0, -1)).op === "complement");
  return [
    {
      kind: "relation",
      label: "Follow a relation …",
      heading: "Follow which relation?",
      change: (step) => [follow(tree, place, step), place],
    },
    joining("intersect"),
    joining("union"),
    {
      kind: "now",
      label: isNegated ? "Remove “not”" : "Not",
      change: () => [negate(tree, place), isNegated && node.op !== "complement" ? place.slice(0, -1) : place],
    },
    ...changesOf(tree, place, node),
  ];
}

/** What only this kind of node offers. */
function changesOf(tree: Tree, place: Place, node: Tree): Choice[] {
  const removal = (label: string): Choice => ({
    kind: "now",
    label,
    change: () => {
      const left = remove(tree, place);
      return [left, left && (node.op === "project" ? place : [])];
    },
  });
  switch (node.op) {
    case "anchor":
      return [
        {
          kind: "entity",
          label: "Replace …",
          isApart: true,
          heading: `In place of ${node.entity.label}`,
          change: (entity) => [replaceEntity(tree, place, entity), place],
        },
        removal(place.length > 0 ? "Remove this branch" : "Remove"),
      ];
    case "project":
      return [
        {
          kind: "relation",
          label: "Replace the relation …",
          isApart: true,
          heading: `In place of ${node.relation.label}`,
          change: (step) => [replaceStep(tree, place, step), place],
        },
        {
          kind: "now",
          label: "Turn the relation around",
          change: () => [replaceStep(tree, place, { relation: node.relation, inverse: !node.inverse }), place],
        },
        removal("Remove this step"),
      ];
    case "intersect":
    case "union":
      return [
        {
          kind: "now",
          label: node.op === "union" ? "Change to “and”" : "Change to “or”",
          isApart: true,
          change: () => [swapJoining(tree, place), place],
        },
        removal("Remove with all its branches"),
      ];
    case "complement":
      return [];
  }
}

/** Below the button where there is room, above it otherwise, and always inside the window. */
function putBelow(popover: HTMLElement, button: HTMLElement): void {
  const [at, own, margin] = [button.getBoundingClientRect(), popover.getBoundingClientRect(), 8];
  const left = Math.min(at.left, innerWidth - own.width - margin);
  const fitsBelow = at.bottom + margin + own.height < innerHeight;
  const top = fitsBelow ? at.bottom + margin / 2 : Math.max(margin, at.top - own.height - margin / 2);
  popover.style.left = `${Math.max(margin, left)}px`;
  popover.style.top = `${top}px`;
}
