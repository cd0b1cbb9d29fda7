import { useId, useMemo, useRef, useState, type KeyboardEvent } from "react";

import type { MapPoint, ParticleMap } from "../api";
import { useWidth } from "../hooks";
import { apart, labels, projection } from "../map";
import { count, particleName, percent, STATUS_WORD } from "../wording";
import { colourOf, ParticleMark, shapeOf } from "./Marks";

interface MapPanelProps {
  readonly map: ParticleMap;
  readonly selected: string | null;
  select(name: string): void;
}

/** The neighbourhood of the answers in two dimensions: which particle found which answer. */
export function MapPanel({ map, selected, select }: MapPanelProps) {
  const id = useId();
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const height = Math.round(Math.max(width * 0.7, 320));
  const [active, setActive] = useState<number | null>(null);
  const { points, particles, written } = useMemo(() => {
    const frame = { width, height, margin: 36 };
    const onPaper = projection(map, frame);
    const points = map.answers.map((answer) => ({ ...answer, ...onPaper(answer) }));
    const particles = apart(
      map.particles.map((particle) => ({ ...particle, ...onPaper(particle) })),
      32,
    );
    return { points, particles, written: labels(points, particles, frame) };
  }, [map, width, height]);
  const shown = active === null ? undefined : points[active];
  const shares = map.variance.slice(0, 2).reduce((sum, share) => sum + share, 0);

  const press = (event: KeyboardEvent) => {
    const at = active ?? 0;
    const to = {
      ArrowRight: at + 1,
      ArrowDown: at + 1,
      ArrowLeft: at - 1 + points.length,
      ArrowUp: at - 1 + points.length,
      Home: 0,
      End: points.length - 1,
    }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      setActive(to % points.length);
    } else if ((event.key === "Enter" || event.key === " ") && shown) {
      event.preventDefault();
      select(shown.name);
    }
  };

  return (
    <div ref={box} className="map">
      <svg
        viewBox={`0 0 ${width} ${height}`}
        role="listbox"
        aria-label="Particle map: the answers and the particles that found them"
        aria-activedescendant={active === null ? undefined : `${id}-${active}`}
        tabIndex={0}
        onKeyDown={press}
        onFocus={() => setActive((before) => before ?? 0)}
        onBlur={() => setActive(null)}
        onPointerLeave={() => setActive(null)}
      >
        <g aria-hidden="true">
          {points.map((point) => {
            const home = particles.find(({ particle }) => particle === point.particle);
            return (
              home && (
                <line
                  key={point.name}
                  className={`tie ${colourOf(point.particle)}`}
                  x1={home.x}
                  y1={home.y}
                  x2={point.x}
                  y2={point.y}
                />
              )
            );
          })}
          {particles.map(({ particle, x, y }) => (
            <g key={particle} className={`particle ${colourOf(particle)}`} transform={`translate(${x} ${y})`}>
              <circle r="14" />
              <path d={shapeOf(particle)} />
            </g>
          ))}
        </g>
        {points.map((point, index) => (
          <g
            key={point.name}
            id={`${id}-${index}`}
            role="option"
            aria-selected={point.name === selected}
            aria-label={describe(point)}
            className={`point ${point.status} ${colourOf(point.particle)}${index === active ? " active" : ""}${point.name === selected ? " selected" : ""}`}
            transform={`translate(${point.x} ${point.y})`}
            onPointerEnter={() => setActive(index)}
            onClick={() => select(point.name)}
          >
            <circle className="halo" r="12" />
            <path d={shapeOf(point.particle)} />
            {point.status === "supported" && <circle className="eye" r="1.8" />}
          </g>
        ))}
        <g aria-hidden="true">
          {written.map(({ name, text, x, y, isLeft }) => (
            <text key={name} className="map-label" x={x} y={y} dy="0.35em" textAnchor={isLeft ? "end" : "start"}>
              {text}
            </text>
          ))}
        </g>
      </svg>
      <p className="map-says" aria-hidden={shown === undefined}>
        {shown ? (
          <>
            <ParticleMark particle={shown.particle} /> <b>{shown.label}</b> {describe(shown).slice(shown.label.length)}
          </>
        ) : (
          <span className="quiet">Point at a mark, or use the arrow keys; choose one for its evidence.</span>
        )}
      </p>
      <ul className="legend">
        {particles.map(({ particle, answers }) => (
          <li key={particle}>
            <ParticleMark particle={particle} />
            {particleName(particle)}: {count(answers, "answer", "answers")}
          </li>
        ))}
        <li>
          <svg className="particle-mark sample known" viewBox="-7 -7 14 14" aria-hidden="true">
            <path d={shapeOf(0)} />
          </svg>
          filled: from stored facts
        </li>
        <li>
          <svg className="particle-mark sample predicted" viewBox="-7 -7 14 14" aria-hidden="true">
            <path d={shapeOf(0)} />
          </svg>
          hollow: a guess
        </li>
        {shares > 0 && <li className="quiet">the two axes show {percent(shares, shares >= 1)} of the variance</li>}
      </ul>
    </div>
  );
}

function describe({ label, status, probability, particle, rank }: MapPoint): string {
  const parts = [
    `rank ${rank}`,
    STATUS_WORD[status],
    ...(probability == null ? [] : [percent(probability, status === "known")]),
  ];
  return `${label}: ${parts.join(", ")}, ${particleName(particle)}`;
}
