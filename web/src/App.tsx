import { useState } from "react";

import { api, OfflineError, ServerError, rememberKey } from "./api";
import { useLoaded } from "./hooks";
import { summaryOf } from "./parts/Answers";
import { KeyDialog } from "./parts/KeyDialog";
import { Question } from "./parts/Question";
import { Results } from "./parts/Results";
import { ThemeButton } from "./parts/Theme";
import { isAboutTheQuestion, useWorkbench } from "./useWorkbench";
import { count } from "./wording";

export function App() {
  const workbench = useWorkbench();
  const { asked, error } = workbench;
  const [visit, setVisit] = useState(0); // counts up when everything is to be fetched again
  const about = useLoaded(`${visit} ${asked.run}`, () => api.graph(asked.run));
  const runs = useLoaded(`${visit}`, () => api.runs());
  const examples = useLoaded(`${visit} ${asked.run}`, () => api.examples(asked.run));
  const graph = about.state === "done" ? about.value : null;
  const served = runs.state === "done" ? runs.value : null;
  const run = served?.runs.find(({ name }) => name === (asked.run ?? served.default));
  const failed = error ?? (about.state === "failed" ? about.error : null);
  const wantsKey = failed instanceof ServerError && failed.status === 401;

  const tryAgain = () => {
    setVisit((before) => before + 1);
    workbench.askNow();
  };

  return (
    <>
      <a className="skip" href="#answers" onClick={(event) => skipTo(event, "answers")}>
        Skip to the answers
      </a>
      <header>
        <h1>
          <img src="./icon.svg" alt="" width="28" height="28" /> query2particles
        </h1>
        {graph && (
          <p className="about" title={graph.description ?? undefined}>
            <b>{graph.name}</b>
            <span>{count(graph.entities, "entity", "entities")}</span>
            <span>{count(graph.relations, "relation", "relations")}</span>
            <span>{count(graph.facts, "fact", "facts")}</span>
          </p>
        )}
        <div className="header-tools">
          {served && served.runs.length > 1 && (
            <label className="field">
              <span>Run</span>
              <select
                value={asked.run ?? served.default ?? ""}
                onChange={(event) => workbench.change({ run: event.target.value })}
              >
                {served.runs.map(({ name }) => (
                  <option key={name}>{name}</option>
                ))}
              </select>
            </label>
          )}
          <ThemeButton />
        </div>
      </header>
      <main>
        {/* Always there, so that a screen reader hears what appears in it. */}
        <p className="hidden" role="status">
          {workbench.answered && summaryOf(workbench.answered)}
        </p>
        {failed && !wantsKey && !isAboutTheQuestion(failed) && <Failure error={failed} tryAgain={tryAgain} />}
        <Question workbench={workbench} examples={examples.state === "done" ? examples.value : []} />
        <Results workbench={workbench} examples={examples.state === "done" ? examples.value : []} run={run} />
      </main>
      <footer>
        {graph?.attribution && (
          <p>
            <b>Data of {graph.name}.</b> {graph.attribution} {graph.licence}
          </p>
        )}
        <p>
          Guesses are a model’s, not facts. <a href="docs">API</a> · <a href="licences.txt">Licences</a>
        </p>
      </footer>
      {wantsKey && (
        <KeyDialog
          key={visit}
          message={failed.message}
          submit={(key) => {
            rememberKey(key);
            tryAgain();
          }}
        />
      )}
    </>
  );
}

/** A link to #answers would take the place of the question in the address. */
function skipTo(event: { preventDefault(): void }, id: string): void {
  event.preventDefault();
  document.getElementById(id)?.focus();
}

function Failure({ error, tryAgain }: { readonly error: Error; tryAgain(): void }) {
  const isOffline = error instanceof OfflineError;
  return (
    <div className="failure" role="alert">
      <p>
        <b>{isOffline ? "The server does not answer." : "The server could not do this."}</b>{" "}
        {isOffline
          ? "It may have been stopped, or the connection is gone. What you see is from before."
          : error.message}
      </p>
      <button type="button" className="small" onClick={tryAgain}>
        Try again
      </button>
    </div>
  );
}
