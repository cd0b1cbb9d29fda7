import { useId } from "react";

import { AMOUNTS, type Asked, type Method, type Only } from "../share";

interface FiltersProps {
  readonly asked: Asked;
  /** Without a model there are no guesses to filter. */
  readonly hasModel: boolean;
  /** Whether particles are one part among others, which can be asked alone. */
  readonly isJoined: boolean;
  /** Without a calibration nothing has a probability. */
  readonly isCalibrated: boolean;
  change(part: Partial<Asked>): void;
}

const SHOWN: readonly (readonly [Only | null, string])[] = [
  [null, "All"],
  ["known", "Known"],
  ["predicted", "Guesses"],
];

const METHODS: readonly (readonly [Method, string])[] = [
  ["both", "both"],
  ["exact", "stored facts"],
  ["neural", "the model"],
];
const OF_A_JOINED_RUN: readonly (readonly [Method, string])[] = [...METHODS, ["fast", "particles alone"]];

export function Filters({ asked, hasModel, isJoined, isCalibrated, change }: FiltersProps) {
  const id = useId();
  return (
    <div className="filters" role="group" aria-label="Filters">
      {hasModel && (
        <fieldset className="segments">
          <legend className="hidden">Which answers</legend>
          {SHOWN.map(([only, word]) => (
            <label key={word}>
              <input type="radio" name={`${id}-only`} checked={asked.only === only} onChange={() => change({ only })} />
              <span>{word}</span>
            </label>
          ))}
        </fieldset>
      )}
      {isCalibrated && (
        <div className="field">
          <label htmlFor={`${id}-minimum`}>At least</label>
          <input
            id={`${id}-minimum`}
            type="range"
            min={0}
            max={0.95}
            step={0.05}
            value={asked.minimum}
            aria-valuetext={`${Math.round(asked.minimum * 100)} percent`}
            onChange={(event) => change({ minimum: Number(event.target.value) })}
          />
          <span className="number">{Math.round(asked.minimum * 100)} %</span>
        </div>
      )}
      {hasModel && (
        <div className="field">
          <label htmlFor={`${id}-method`}>From</label>
          <select
            id={`${id}-method`}
            value={asked.method}
            onChange={(event) => change({ method: event.target.value as Method })}
          >
            {(isJoined ? OF_A_JOINED_RUN : METHODS).map(([method, word]) => (
              <option key={method} value={method}>
                {word}
              </option>
            ))}
          </select>
        </div>
      )}
    </div>
  );
}

/** How many answers are shown. */
export function Amount({ asked, change }: Pick<FiltersProps, "asked" | "change">) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>Show</label>
      <select id={id} value={asked.k} onChange={(event) => change({ k: Number(event.target.value) })}>
        {AMOUNTS.map((amount) => (
          <option key={amount}>{amount}</option>
        ))}
      </select>
    </div>
  );
}
