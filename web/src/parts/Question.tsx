import { useEffect, useState } from "react";

import type { Example } from "../api";
import { isAboutTheQuestion, type Workbench } from "../useWorkbench";
import { SYNTAX_WORD } from "../wording";
import { ExampleMenu } from "./Examples";
import { QuestionGraph } from "./QuestionGraph";
import { QuestionText } from "./QuestionText";

interface QuestionProps {
  readonly workbench: Workbench;
  readonly examples: readonly Example[];
}

/** The question as text and as a graph, in step. */
export function Question({ workbench, examples }: QuestionProps) {
  const { asked, parsed, error, tree, change, edit, askNow, isBusy } = workbench;
  const problem = isAboutTheQuestion(error) ? error : null;
  const canonical = parsed && !problem ? parsed.canonical : null;
  return (
    <section className="card question" aria-label="Question">
      <QuestionText
        text={asked.question}
        run={asked.run}
        problem={problem}
        change={(question) => change({ question })}
        ask={askNow}
      />
      <div className="question-tools">
        <button type="button" className="primary" onClick={askNow} disabled={!asked.question.trim()}>
          {isBusy ? "Asking …" : "Ask"}
        </button>
        <ExampleMenu examples={examples} choose={(text) => change({ question: text })} />
        {asked.question && (
          <button type="button" className="small plain" onClick={() => edit(null)}>
            Clear
          </button>
        )}
        <div className="apart">
          {canonical && (
            <div className="buttons syntaxes" role="group" aria-label="Write the question as">
              {(["path", "logic", "json"] as const).map((syntax) => (
                <button
                  key={syntax}
                  type="button"
                  className="small"
                  aria-pressed={parsed?.syntax === syntax}
                  onClick={() => change({ question: canonical[syntax] })}
                >
                  {SYNTAX_WORD[syntax]}
                </button>
              ))}
              {parsed?.syntax === "sparql" && (
                <button type="button" className="small" aria-pressed="true">
                  SPARQL
                </button>
              )}
            </div>
          )}
          {asked.question && <CopyLink />}
        </div>
      </div>
      <QuestionGraph tree={tree} run={asked.run} isStale={problem !== null} edit={edit} />
    </section>
  );
}

function CopyLink() {
  const [state, setState] = useState<"ready" | "copied" | "by hand">("ready");
  useEffect(() => {
    if (state === "ready") return undefined;
    const timer = setTimeout(() => setState("ready"), 4000);
    return () => clearTimeout(timer);
  }, [state]);
  const copy = () =>
    // Without https, browsers let no page write to the clipboard; the address bar holds the same link.
    (navigator.clipboard?.writeText(location.href) ?? Promise.reject(new Error("no clipboard"))).then(
      () => setState("copied"),
      () => setState("by hand"),
    );
  const words = { ready: "Copy link", copied: "Link copied", "by hand": "Copy it from the address bar" };
  return (
    <button type="button" className="small" onClick={copy} aria-live="polite">
      {words[state]}
    </button>
  );
}
