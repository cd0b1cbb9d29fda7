import type { Status } from "../api";
import { particleName, percent, STATUS_MEANING, STATUS_WORD } from "../wording";

/** Known, supported or a guess: a word and a sign, never a colour alone. */
export function StatusMark({ status }: { readonly status: Status }) {
  return (
    <span className={`status ${status}`} title={STATUS_MEANING[status]}>
      <svg viewBox="0 0 12 12" aria-hidden="true">
        {status === "known" && <path d="M2 6.4 4.8 9.2 10 3.4" />}
        {status === "supported" && <path d="M6 1.4 V10.6 M1.4 6 H10.6" />}
        {status === "predicted" && <path d="M3.6 4.2 a2.4 2.2 0 1 1 3.3 2.1 q-.9 .4 -.9 1.4 M6 10 v.3" />}
      </svg>
      {STATUS_WORD[status]}
    </span>
  );
}

/** A bar that is full at certainty; guesses are hatched. */
export function ProbabilityBar({ probability, status }: { readonly probability: number; readonly status: Status }) {
  return (
    <span className="probability">
      <span className={`bar ${status}`} aria-hidden="true">
        <span style={{ width: `${Math.max(probability * 100, 1)}%` }} />
      </span>
      <span className="number">{percent(probability, status === "known")}</span>
    </span>
  );
}

const SHAPES = [
  "M0 -5 A5 5 0 1 1 0 5 A5 5 0 1 1 0 -5 Z", // circle
  "M-4.5 -4.5 H4.5 V4.5 H-4.5 Z", // square
  "M0 -5.6 L5.6 4.2 H-5.6 Z", // triangle
  "M0 -6 L6 0 L0 6 L-6 0 Z", // diamond
  "M0 5.6 L5.6 -4.2 H-5.6 Z", // triangle upside down
  "M-5.6 -1.9 H-1.9 V-5.6 H1.9 V-1.9 H5.6 V1.9 H1.9 V5.6 H-1.9 V1.9 H-5.6 Z", // cross
] as const;

export function shapeOf(particle: number): string {
  return SHAPES[particle % SHAPES.length] ?? SHAPES[0];
}

/** The class that gives a particle its colour. */
export function colourOf(particle: number): string {
  return `colour-${particle % SHAPES.length}`;
}

export function ParticleMark({ particle }: { readonly particle: number }) {
  return (
    <svg
      className={`particle-mark ${colourOf(particle)}`}
      viewBox="-7 -7 14 14"
      role="img"
      aria-label={particleName(particle)}
    >
      <title>{`Found by ${particleName(particle)}`}</title>
      <path d={shapeOf(particle)} />
    </svg>
  );
}
