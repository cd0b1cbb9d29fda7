import { useEffect, useId, useLayoutEffect, useRef, useState, type KeyboardEvent } from "react";

import { api, type ServerError } from "../api";
import { useLoaded, useSettled } from "../hooks";
import { completed, wantedAt, type Kind } from "../question/completion";
import { written } from "../question/path";
import { spanOf } from "../question/span";
import type { Named } from "../question/tree";
import { NameAndLabel } from "./Picker";

interface QuestionTextProps {
  readonly text: string;
  readonly run: string | null;
  /** What the server says against the text, at a place in it. */
  readonly problem: ServerError | null;
  change(text: string): void;
  ask(): void;
}

/** The question as text, with completion of names, and errors under the words that they speak of. */
export function QuestionText({ text, run, problem, change, ask }: QuestionTextProps) {
  const id = useId();
  const area = useRef<HTMLTextAreaElement>(null);
  const mark = useRef<HTMLElement>(null);
  const [caret, setCaret] = useState<number | null>(null); // null: nothing to complete
  const [active, setActive] = useState(0);
  const [arrow, setArrow] = useState(0);

  const wanted = caret === null ? null : wantedAt(text, caret);
  const wantedKey = wanted && `${run}\n${wanted.kind}\n${wanted.prefix}`;
  const key = useSettled(wantedKey, 120);
  const loaded = useLoaded<Named[]>(key, (signal) =>
    wanted?.kind === "relation"
      ? api.relations(wanted.prefix, run, signal)
      : api.entities(wanted?.prefix ?? "", run, signal),
  );
  const isFresh = key === wantedKey && loaded.state === "done";
  // What was found for the letters before stays in sight while the next are looked up.
  const [found, setFound] = useState<{ kind: Kind; names: readonly Named[] } | null>(null);
  useEffect(() => {
    if (!wanted || !isFresh) return;
    setFound({ kind: wanted.kind, names: loaded.value.slice(0, 8) });
    setActive(0);
    // oxlint-disable-next-line react-hooks/exhaustive-deps -- one result, one update
  }, [isFresh, key]);
  const offered = found && found.kind === wanted?.kind ? found.names : [];
  // A name that is already written out needs no completion.
  const names = offered.length === 1 && offered[0]?.name === wanted?.prefix ? [] : offered;
  const isOpen = names.length > 0;

  const span = problem?.position == null ? null : spanOf(text, problem.position, problem.length);

  useLayoutEffect(() => {
    const element = area.current;
    if (!element) return;
    element.style.height = "auto";
    element.style.height = `${element.scrollHeight}px`;
    setArrow(mark.current ? mark.current.offsetLeft + Math.min(mark.current.offsetWidth, 40) / 2 : 0);
  }, [text, span?.start, span?.end]);

  const accept = (name: string) => {
    if (!wanted) return;
    const after = completed(text, wanted, name);
    change(after.text);
    setCaret(null);
    setFound(null);
    requestAnimationFrame(() => {
      area.current?.focus();
      area.current?.setSelectionRange(after.caret, after.caret);
    });
  };

  const press = (event: KeyboardEvent) => {
    const to = { ArrowDown: active + 1, ArrowUp: active - 1 + names.length }[event.key];
    if (isOpen && to !== undefined) {
      event.preventDefault();
      setActive(to % names.length);
    } else if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      const chosen = names[active];
      if (!isOpen) ask();
      else if (chosen && isFresh) accept(chosen.name);
    } else if (isOpen && event.key === "Escape") setCaret(null);
  };

  const replaceWord = (suggestion: string) => {
    if (span) change(text.slice(0, span.start) + written(suggestion) + text.slice(span.end));
    area.current?.focus();
  };

  return (
    <div className="question-text">
      <label htmlFor={`${id}-text`}>Question</label>
      <div className={problem ? "editor wrong" : "editor"}>
        <div className="mirror" aria-hidden="true">
          {span ? (
            <>
              {text.slice(0, span.start)}
              <mark ref={mark}>{text.slice(span.start, span.end) || " "}</mark>
              {text.slice(span.end)}
            </>
          ) : (
            text
          )}
        </div>
        <textarea
          id={`${id}-text`}
          ref={area}
          rows={1}
          value={text}
          placeholder='for example "Turing Award".^award_received'
          spellCheck={false}
          autoCapitalize="off"
          autoComplete="off"
          aria-autocomplete="list"
          aria-haspopup="listbox"
          aria-controls={isOpen ? `${id}-list` : undefined}
          aria-activedescendant={isOpen ? `${id}-${active}` : undefined}
          aria-invalid={problem !== null}
          aria-describedby={problem ? `${id}-problem` : undefined}
          onChange={(event) => {
            setCaret(event.target.selectionStart);
            change(event.target.value);
          }}
          onKeyDown={press}
          onBlur={() => setCaret(null)}
        />
        {isOpen && (
          <div id={`${id}-list`} role="listbox" aria-label="Names" className="options floating">
            {names.map((named, index) => (
              <div
                key={named.name}
                id={`${id}-${index}`}
                role="option"
                aria-selected={index === active}
                className="option"
                onPointerDown={(event) => {
                  event.preventDefault(); // keep the caret in the text
                  accept(named.name);
                }}
              >
                <NameAndLabel named={named} />
              </div>
            ))}
          </div>
        )}
      </div>
      {problem && (
        <div id={`${id}-problem`} className="problem" role="alert">
          {span && <span className="problem-arrow" aria-hidden="true" style={{ left: arrow }} />}
          <p>{withoutAdvice(problem)}</p>
          {span && problem.suggestions.length > 0 && (
            <p className="suggestions">
              <span className="quiet">Did you mean</span>
              {problem.suggestions.map((suggestion) => (
                <button key={suggestion} type="button" className="small" onClick={() => replaceWord(suggestion)}>
                  {suggestion}
                </button>
              ))}
            </p>
          )}
        </div>
      )}
    </div>
  );
}

/** Suggestions are offered as buttons, so the message need not list them again. */
function withoutAdvice({ message, suggestions }: ServerError): string {
  return suggestions.length > 0 ? message.replace(/; did you mean .*$/su, ".") : message;
}
