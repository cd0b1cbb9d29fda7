import { useEffect, useId, useRef, useState, type KeyboardEvent, type ReactNode } from "react";

import { api } from "../api";
import { useLoaded, useSettled } from "../hooks";
import { startingPoints } from "../question/starts";
import type { Named, Step } from "../question/tree";
import { DirectionSign } from "./QuestionGraph";

interface PickerProps<Item> {
  readonly heading: string;
  readonly placeholder: string;
  readonly run: string | null;
  load(prefix: string, run: string | null, signal: AbortSignal): Promise<Item[]>;
  keyOf(item: Item): string;
  show(item: Item): ReactNode;
  pick(item: Item): void;
}

/** A search for a name: type, choose with the arrow keys or by clicking. */
function Picker<Item>({ heading, placeholder, run, load, keyOf, show, pick }: PickerProps<Item>) {
  const id = useId();
  const input = useRef<HTMLInputElement>(null);
  const [prefix, setPrefix] = useState("");
  const [active, setActive] = useState(0);
  const settled = useSettled(prefix, prefix ? 120 : 0);
  const loaded = useLoaded(`${run}\n${settled}`, (signal) => load(settled, run, signal));
  const [items, setItems] = useState<readonly Item[]>([]);
  /** What Enter asked for before the list of this prefix was there: one of the list before by its key, or the first. */
  const [awaited, setAwaited] = useState<{ readonly key: string | null } | null>(null);
  useEffect(() => input.current?.focus(), []);
  useEffect(() => {
    if (loaded.state !== "done") return;
    setItems(loaded.value); // what was found before stays in sight while the next is looked up
    setActive(0);
    if (awaited === null || settled !== prefix) return;
    const item = awaited.key === null ? loaded.value[0] : loaded.value.find((one) => keyOf(one) === awaited.key);
    setAwaited(null);
    if (item) pick(item);
    // oxlint-disable-next-line react-hooks/exhaustive-deps -- one result, one update
  }, [loaded.state === "done" && loaded.value]);

  const press = (event: KeyboardEvent) => {
    const to = { ArrowDown: active + 1, ArrowUp: active - 1 + items.length }[event.key];
    if (to !== undefined && items.length > 0) {
      event.preventDefault();
      setActive(to % items.length);
      document.getElementById(`${id}-${to % items.length}`)?.scrollIntoView({ block: "nearest" });
    }
    if (event.key !== "Enter") return;
    event.preventDefault();
    const item = items[active];
    if (settled === prefix && loaded.state === "done") {
      if (item) pick(item);
    } else if (prefix) {
      // The list belongs to an earlier prefix, in which the first is not what is asked for.
      setAwaited({ key: active > 0 && item ? keyOf(item) : null });
    }
  };

  return (
    <div className="picker">
      <label htmlFor={`${id}-input`}>{heading}</label>
      <input
        id={`${id}-input`}
        ref={input}
        type="text"
        role="combobox"
        aria-expanded={items.length > 0}
        aria-controls={`${id}-list`}
        aria-autocomplete="list"
        aria-activedescendant={items.length > 0 ? `${id}-${active}` : undefined}
        autoComplete="off"
        spellCheck={false}
        placeholder={placeholder}
        value={prefix}
        onChange={(event) => {
          setPrefix(event.target.value);
          setAwaited(null);
        }}
        onKeyDown={press}
      />
      <div id={`${id}-list`} role="listbox" aria-label={heading} className="options">
        {items.map((item, index) => (
          <div
            key={keyOf(item)}
            id={`${id}-${index}`}
            role="option"
            aria-selected={index === active}
            className="option"
            onPointerMove={() => setActive(index)}
            onClick={() => pick(item)}
          >
            {show(item)}
          </div>
        ))}
      </div>
      {loaded.state === "done" && items.length === 0 && <p className="quiet">Nothing begins like this.</p>}
      {loaded.state === "failed" && <p className="quiet">{loaded.error.message}</p>}
    </div>
  );
}

interface EntityPickerProps {
  readonly heading: string;
  readonly run: string | null;
  pick(entity: Named): void;
}

export function EntityPicker(props: EntityPickerProps) {
  return (
    <Picker<Named>
      {...props}
      placeholder="Type the beginning of a name"
      load={(prefix, run, signal) => (prefix ? api.entities(prefix, run, signal) : startingPoints(run))}
      keyOf={(entity) => entity.name}
      show={(entity) => <NameAndLabel named={entity} />}
    />
  );
}

interface RelationPickerProps {
  readonly heading: string;
  readonly run: string | null;
  pick(step: Step): void;
}

/** Every relation is offered in both directions. */
export function RelationPicker(props: RelationPickerProps) {
  return (
    <Picker<Step>
      {...props}
      placeholder="Type the beginning of a relation"
      load={async (prefix, run, signal) => {
        const relations = await api.relations(prefix, run, signal);
        return relations.flatMap((relation) => [false, true].map((inverse) => ({ relation, inverse })));
      }}
      keyOf={({ relation, inverse }) => `${inverse ? "^" : ""}${relation.name}`}
      show={({ relation, inverse }) => (
        <>
          <DirectionSign isInverse={inverse} />
          <span className="clipped">{relation.label}</span>
          <span className="hint">{inverse ? "? → here" : "here → ?"}</span>
        </>
      )}
    />
  );
}

export function NameAndLabel({ named }: { readonly named: Named }) {
  return (
    <>
      <span className="clipped">{named.label}</span>
      {named.label !== named.name && <span className="hint clipped">{named.name}</span>}
    </>
  );
}
