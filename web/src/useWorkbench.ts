/** The question, in step as text, as a tree and as a link, with its answers. */

import { useCallback, useEffect, useRef, useState } from "react";

import { api, OfflineError, ServerError, type Answered, type Parsed } from "./api";
import { pathText } from "./question/path";
import type { Tree } from "./question/tree";
import { fromHash, toHash, type Asked } from "./share";

const PAUSE = 250; // milliseconds that a person stops typing before the server is asked

export interface Workbench {
  readonly asked: Asked;
  readonly tree: Tree | null;
  readonly parsed: Parsed | null;
  readonly answered: Answered | null;
  readonly error: Error | null;
  readonly isBusy: boolean;
  /** The answers on the page belong to an earlier state of the question. */
  readonly isStale: boolean;
  change(part: Partial<Asked>): void;
  edit(tree: Tree | null): void;
  askNow(): void;
}

export function useWorkbench(): Workbench {
  const [asked, setAsked] = useState<Asked>(() => fromHash(location.hash));
  const [tree, setTree] = useState<Tree | null>(null);
  const [parsed, setParsed] = useState<Parsed | null>(null);
  const [answered, setAnswered] = useState<{ asked: Asked; answered: Answered } | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [isBusy, setBusy] = useState(false);
  const [attempt, setAttempt] = useState(0);
  const pause = useRef(0); // the first question of a link is asked at once
  const drawn = useRef<string | null>(null); // the text of the tree that was last edited as a graph

  const change = useCallback((part: Partial<Asked>) => {
    pause.current = PAUSE;
    drawn.current = null;
    setError(null);
    setAsked((before) => ({ ...before, ...part }));
  }, []);

  const edit = useCallback((edited: Tree | null) => {
    const text = edited ? pathText(edited) : "";
    drawn.current = text;
    pause.current = 0;
    setTree(edited);
    setError(null);
    setAsked((before) => ({ ...before, question: text }));
  }, []);

  const askNow = useCallback(() => {
    pause.current = 0;
    setAttempt((before) => before + 1);
  }, []);

  useEffect(() => {
    const listen = () => {
      pause.current = 0;
      drawn.current = null;
      setAsked(fromHash(location.hash));
    };
    addEventListener("hashchange", listen);
    return () => removeEventListener("hashchange", listen);
  }, []);

  useEffect(() => {
    history.replaceState(null, "", toHash(asked) || location.pathname + location.search);
  }, [asked]);

  useEffect(() => {
    if (!asked.question.trim()) {
      setTree(null);
      setParsed(null);
      setAnswered(null);
      setError(null);
      setBusy(false);
      return undefined;
    }
    const abort = new AbortController();
    const timer = setTimeout(async () => {
      setBusy(true);
      setError(null);
      try {
        const parsing = api.parse(asked.question, asked.run, abort.signal).then((found) => {
          setParsed(found);
          // A tree that was just drawn stays as it was drawn.
          if (drawn.current !== asked.question) setTree(found.ast);
        });
        const [, found] = await Promise.all([parsing, api.answer(asked, abort.signal)]);
        setAnswered({ asked, answered: found });
      } catch (thrown) {
        if (abort.signal.aborted) return;
        setError(thrown as Error);
      }
      setBusy(false);
    }, pause.current);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [asked, attempt]);

  useEffect(() => {
    if (!(error instanceof OfflineError)) return undefined;
    addEventListener("online", askNow);
    return () => removeEventListener("online", askNow);
  }, [error, askNow]);

  return {
    asked,
    tree,
    parsed,
    answered: answered?.answered ?? null,
    error,
    isBusy,
    isStale: answered !== null && answered.asked !== asked,
    change,
    edit,
    askNow,
  };
}

/** An error of the question itself, which is shown under the words it speaks of. */
export function isAboutTheQuestion(error: Error | null): error is ServerError {
  return (
    error instanceof ServerError && ["syntax", "unknown_name", "ambiguous_name", "unsupported"].includes(error.code)
  );
}
