import type { Answer, Answered } from "../api";
import { saveAs, toCsv } from "../export";
import { count, expectation, percent } from "../wording";
import { ParticleMark, ProbabilityBar, StatusMark } from "./Marks";

interface AnswersProps {
  readonly answered: Answered;
  /** They are of an earlier question, as the present one has none. */
  readonly isStale: boolean;
  /** Whether guesses that were folded away are among them. */
  readonly isUnfolded: boolean;
  readonly selected: string | null;
  select(name: string): void;
  /** Show the guesses that are folded away, or fold them away again. */
  unfold(isUnfolded: boolean): void;
}

export function Answers({ answered, isStale, isUnfolded, selected, select, unfold }: AnswersProps) {
  const { answers, folded, warning } = answered;
  const has = (part: "probability" | "particle") => answers.some((answer) => answer[part] != null);
  const [hasProbabilities, hasParticles] = [has("probability"), has("particle")];
  return (
    <div className={isStale ? "stale" : undefined}>
      {isStale && <p className="note">These are the answers to the question before.</p>}
      {warning && <p className="note">{warning}</p>}
      {answers.length === 0 && folded.length === 0 && <p className="empty">No answer passes the filters.</p>}
      {answers.length > 0 && (
        <table className="answers">
          <thead>
            <tr>
              <th scope="col" className="number">
                <span className="hidden">Rank</span>
              </th>
              <th scope="col">Answer</th>
              {hasProbabilities && (
                <th scope="col" className="column-probability">
                  Probability
                </th>
              )}
              {hasParticles && (
                <th scope="col" className="column-particle">
                  <span className="hidden">Particle</span>
                </th>
              )}
            </tr>
          </thead>
          <tbody>
            {answers.map((answer) => (
              <Row
                key={answer.name}
                answer={answer}
                isSelected={answer.name === selected}
                select={select}
                hasProbability={hasProbabilities}
                hasParticle={hasParticles}
              />
            ))}
          </tbody>
        </table>
      )}
      {folded.length > 0 && (
        <p className="folded">
          <button type="button" className="small" aria-expanded={isUnfolded} onClick={() => unfold(!isUnfolded)}>
            {`${isUnfolded ? "Hide" : "Show"} ${count(folded.length, "guess", "guesses")}`}
          </button>
          {!isUnfolded && folded[0]?.probability != null && (
            <span className="quiet">the likeliest {percent(folded[0].probability)}</span>
          )}
        </p>
      )}
    </div>
  );
}

interface RowProps {
  readonly answer: Answer;
  readonly isSelected: boolean;
  readonly hasProbability: boolean;
  readonly hasParticle: boolean;
  select(name: string): void;
}

function Row({ answer, isSelected, hasProbability, hasParticle, select }: RowProps) {
  const status = answer.status ?? "known"; // an exact answer without a model says nothing else
  return (
    <tr className={isSelected ? `selected ${status}` : status} onClick={() => select(answer.name)}>
      <td className="number quiet">{answer.rank}</td>
      <td>
        <div className="answer-cell">
          <button
            type="button"
            className="answer"
            aria-pressed={isSelected}
            title={answer.name}
            onClick={(event) => {
              event.stopPropagation(); // the row listens as well
              select(answer.name);
            }}
          >
            {answer.label}
          </button>
          <StatusMark status={status} />
        </div>
      </td>
      {hasProbability && (
        <td>{answer.probability != null && <ProbabilityBar probability={answer.probability} status={status} />}</td>
      )}
      {hasParticle && <td>{answer.particle != null && <ParticleMark particle={answer.particle} />}</td>}
    </tr>
  );
}

export function ExportButtons({ answered }: { readonly answered: Answered }) {
  return (
    <div className="buttons" role="group" aria-label="Export the answers">
      <button type="button" className="small" onClick={() => saveAs("answers.csv", "text/csv", toCsv(answered))}>
        CSV
      </button>
      <button
        type="button"
        className="small"
        onClick={() => saveAs("answers.json", "application/json", JSON.stringify(answered, null, 2))}
      >
        JSON
      </button>
    </div>
  );
}

/** What a screen reader hears when answers arrive, and the line above them. */
export function summaryOf(answered: Answered): string {
  const { answers, folded } = answered;
  const guesses = answers.filter(({ status }) => status === "predicted").length;
  const guessed = guesses > 0 ? `, ${count(guesses, "guess", "guesses")} among them` : "";
  const shown = answers.length === 0 && folded.length > 0 ? "" : ` ${answers.length} shown${guessed}.`;
  return `${expectation(answered)}${shown}`;
}
