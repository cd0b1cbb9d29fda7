import { useId } from "react";

import type { Example } from "../api";
import { SYNTAX_WORD } from "../wording";

interface ExamplesProps {
  readonly examples: readonly Example[];
  choose(text: string): void;
}

export function ExampleMenu({ examples, choose }: ExamplesProps) {
  const id = useId();
  if (examples.length === 0) return null;
  return (
    <>
      <button type="button" className="small anchor-examples" popoverTarget={id}>
        Examples
      </button>
      <div id={id} popover="auto" className="menu examples" role="dialog" aria-label="Example questions">
        <ExampleList
          examples={examples}
          choose={(text) => {
            document.getElementById(id)?.hidePopover();
            choose(text);
          }}
        />
      </div>
    </>
  );
}

export function ExampleList({ examples, choose }: ExamplesProps) {
  return (
    <ul className="example-list">
      {examples.map(({ words, text, syntax }) => (
        <li key={text}>
          <button type="button" className="choice" onClick={() => choose(text)}>
            {words} <span className="hint">{SYNTAX_WORD[syntax] ?? syntax}</span>
          </button>
        </li>
      ))}
    </ul>
  );
}
