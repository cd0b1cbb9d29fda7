import { useRef, useState, type ReactNode } from "react";

import { api, type Answered, type Example, type RunFound } from "../api";
import { useLoaded, useMedia, type Loading } from "../hooks";
import type { Workbench } from "../useWorkbench";
import { Answers, ExportButtons, summaryOf } from "./Answers";
import { EvidencePanel } from "./EvidencePanel";
import { ExampleList } from "./Examples";
import { Amount, Filters } from "./Filters";
import { MapPanel } from "./MapPanel";

interface ResultsProps {
  readonly workbench: Workbench;
  readonly examples: readonly Example[];
  readonly run: RunFound | undefined;
}

type Tab = "evidence" | "map";

const NEIGHBOURS = 80; // answers on the map, at least: a neighbourhood is more than the first ten

/** The answers, and beside them why and where. */
export function Results({ workbench, examples, run }: ResultsProps) {
  const { asked, answered, isStale, isBusy, error, change } = workbench;
  const [unfolded, setUnfolded] = useState<Answered | null>(null); // whose folded guesses are shown
  const [selected, setSelected] = useState<{ query: string; name: string } | null>(null);
  const hasModel = run !== undefined && run.method !== null; // without, there are neither guesses nor particles
  const [chosenTab, setTab] = useState<Tab>("map");
  const tab = hasModel ? chosenTab : "evidence";
  const panel = useRef<HTMLElement>(null);
  const isNarrow = useMedia("(max-width: 979px)");
  const query = answered?.query ?? null;
  const name = selected && selected.query === query ? selected.name : null; // another question, another answer
  const question = answered?.question ?? "";
  const key = (...parts: unknown[]) => JSON.stringify([asked.run, question, ...parts]);
  const evidence = useLoaded(answered && name !== null && tab === "evidence" ? key(name) : null, (signal) =>
    api.explain(question, name ?? "", asked.run, signal),
  );
  const spots = Math.max(asked.k, NEIGHBOURS);
  const map = useLoaded(answered && tab === "map" ? key(spots) : null, (signal) =>
    api.map(question, spots, asked.run, signal),
  );

  const select = (chosen: string) => {
    if (query === null) return;
    setSelected({ query, name: chosen });
    setTab("evidence");
    // Where the evidence stands below the answers, it would appear out of sight.
    if (isNarrow) panel.current?.scrollIntoView({ block: "start" });
  };

  if (!answered) {
    return (
      <section id="answers" className="card" tabIndex={-1} aria-label="Answers">
        {isBusy ? (
          <p className="empty">Asking …</p>
        ) : (
          <div className="welcome">
            <p>
              {error
                ? "There are no answers yet."
                : "Write a question above, or build one by clicking: start from an entity, follow relations, join with and, or, not."}
            </p>
            {!asked.question && examples.length > 0 && (
              <>
                <h2>Try one of these</h2>
                <ExampleList examples={examples} choose={(text) => change({ question: text })} />
              </>
            )}
          </div>
        )}
      </section>
    );
  }

  const isUnfolded = unfolded === answered;
  const shown = isUnfolded ? { ...answered, answers: [...answered.answers, ...answered.folded] } : answered;
  return (
    <div className="results">
      <section id="answers" className="card" tabIndex={-1} aria-labelledby="answers-title" aria-busy={isBusy}>
        <div className="section-head">
          <h2 id="answers-title">Answers</h2>
          <div className="section-tools">
            <Amount asked={asked} change={change} />
            <ExportButtons answered={shown} />
          </div>
        </div>
        <p className="quiet summary">{summaryOf(shown)}</p>
        <Filters
          asked={asked}
          hasModel={hasModel}
          isJoined={run?.method === "best"}
          isCalibrated={run?.calibrated ?? false}
          change={change}
        />
        <Answers
          answered={shown}
          isStale={isStale && error !== null}
          isUnfolded={isUnfolded}
          selected={name}
          select={select}
          unfold={(wanted) => setUnfolded(wanted ? answered : null)}
        />
      </section>
      <section ref={panel} className="card why" aria-label="Why and where">
        <div className="tabs" role="tablist" aria-label="Why and where">
          <TabButton tab="evidence" current={tab} choose={setTab}>
            Evidence
          </TabButton>
          {hasModel && (
            <TabButton tab="map" current={tab} choose={setTab}>
              Particle map
            </TabButton>
          )}
        </div>
        <div role="tabpanel" id="panel" aria-labelledby={`tab-${tab}`} tabIndex={-1}>
          {tab === "evidence" && name === null && (
            <p className="empty">Choose an answer to see the facts it rests on.</p>
          )}
          {tab === "evidence" && <Loaded loading={evidence}>{(found) => <EvidencePanel evidence={found} />}</Loaded>}
          {tab === "map" && (
            <Loaded loading={map}>{(found) => <MapPanel map={found} selected={name} select={select} />}</Loaded>
          )}
        </div>
      </section>
    </div>
  );
}

interface TabButtonProps {
  readonly tab: Tab;
  readonly current: Tab;
  readonly children: ReactNode;
  choose(tab: Tab): void;
}

function TabButton({ tab, current, children, choose }: TabButtonProps) {
  const other: Tab = tab === "map" ? "evidence" : "map";
  return (
    <button
      type="button"
      role="tab"
      id={`tab-${tab}`}
      aria-selected={tab === current}
      aria-controls="panel"
      tabIndex={tab === current ? 0 : -1}
      onClick={() => choose(tab)}
      onKeyDown={(event) => {
        if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
        choose(other);
        document.getElementById(`tab-${other}`)?.focus();
      }}
    >
      {children}
    </button>
  );
}

function Loaded<Value>({ loading, children }: { readonly loading: Loading<Value>; children(value: Value): ReactNode }) {
  switch (loading.state) {
    case "idle":
      return null;
    case "loading":
      return <p className="empty">One moment …</p>;
    case "failed":
      return <p className="empty">{loading.error.message}</p>;
    case "done":
      return children(loading.value);
  }
}
