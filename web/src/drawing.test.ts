import { describe, expect, it } from "vitest";

import type { Fact, ParticleMap, Proof } from "./api";
import { complementsOf, evidenceGraph, factsOf } from "./evidence";
import { layOut, type Box, type Direction } from "./layout";
import { apart, labels, projection } from "./map";

const box = (id: string, ...below: Box[]): Box => ({ id, width: 100, height: 40, below });
const GAPS = { along: 30, beside: 10 };

describe("the layout of a tree", () => {
  const tree = box("root", box("and", box("a", box("A")), box("b", box("B")), box("c", box("d", box("C")))));

  it.each<Direction>(["across", "down"])("keeps boxes apart and inside: %s", (direction) => {
    const { corners, width, height } = layOut(tree, direction, GAPS);
    const placed = [...corners.values()];
    expect(placed).toHaveLength(9);
    placed.forEach((one, index) => {
      expect(one.x).toBeGreaterThanOrEqual(0);
      expect(one.y).toBeGreaterThanOrEqual(0);
      expect(one.x + 100).toBeLessThanOrEqual(width);
      expect(one.y + 40).toBeLessThanOrEqual(height);
      for (const other of placed.slice(index + 1)) {
        expect(Math.abs(one.x - other.x) >= 100 || Math.abs(one.y - other.y) >= 40).toBe(true);
      }
    });
  });

  it("reads towards the root", () => {
    const { corners } = layOut(tree, "across", GAPS);
    expect(corners.get("A")?.x).toBeLessThan(corners.get("a")?.x ?? 0);
    expect(corners.get("and")?.x).toBeLessThan(corners.get("root")?.x ?? 0);
  });

  it("makes room for a parent that is wider than its branch", () => {
    const wide: Box = { id: "wide", width: 300, height: 40, below: [box("leaf")] };
    const { corners, width } = layOut(box("root", wide, box("beside")), "down", GAPS);
    expect(corners.get("wide")?.x).toBe(0);
    expect(corners.get("leaf")?.x).toBe(100); // in its middle
    expect(corners.get("beside")?.x).toBeGreaterThanOrEqual(300);
    expect(width).toBeGreaterThanOrEqual(400);
  });
});

describe("evidence", () => {
  const entity = (name: string) => ({ name, label: name });
  const fact = (head: string, relation: string, tail: string): Fact => ({
    head: entity(head),
    relation: entity(relation),
    tail: entity(tail),
    status: "stored",
    probability: 1,
    score: null,
  });
  const counter: Proof = {
    op: "project",
    entity: entity("Bengio"),
    fact: fact("Bengio", "citizen_of", "Canada"),
    branches: [{ op: "anchor", entity: entity("Canada") }],
  };
  const proof: Proof = {
    op: "project",
    entity: entity("McGill"),
    fact: fact("Bengio", "graduated_from", "McGill"),
    branches: [
      {
        op: "intersect",
        entity: entity("Bengio"),
        branches: [
          {
            op: "project",
            entity: entity("Bengio"),
            fact: fact("Bengio", "award_received", "Turing"),
            branches: [{ op: "anchor", entity: entity("Turing") }],
          },
          {
            op: "complement",
            entity: entity("Bengio"),
            holds: true,
            stored_path: false,
            counter_probability: 0.1,
            threshold: 0.5,
            branches: [counter],
          },
        ],
      },
    ],
  };

  it("draws the branches of an and into one node", () => {
    const root = evidenceGraph(proof);
    expect(root).toMatchObject({ kind: "entity", entity: entity("McGill") });
    const laureate = root.edges[0]?.from;
    expect(laureate).toMatchObject({ kind: "entity", entity: entity("Bengio"), given: false });
    expect(laureate?.edges.map(({ from }) => from.kind)).toEqual(["entity", "complement"]);
    expect(laureate?.edges[1]?.from.edges[0]?.from).toMatchObject({ entity: entity("Canada"), given: true });
  });

  it("rests on the facts outside complements", () => {
    expect(factsOf(proof).map(({ relation }) => relation.name)).toEqual(["award_received", "graduated_from"]);
    expect(complementsOf(proof)).toHaveLength(1);
  });
});

describe("the particle map", () => {
  const answer = (name: string, x: number, y: number) => ({
    name,
    label: name,
    x,
    y,
    particle: 0,
    status: "known" as const,
    probability: 1,
    rank: 1,
  });
  const map: ParticleMap = {
    answers: [answer("a", -3, 2), answer("b", 1, 2)],
    particles: [{ particle: 0, x: 5, y: -2, answers: 2 }],
    variance: [0.5, 0.2],
  };
  const frame = { width: 200, height: 100, margin: 20 };

  it("fits into its frame, upwards is up", () => {
    const onPaper = projection(map, frame);
    const [a, particle] = [onPaper({ x: -3, y: 2 }), onPaper({ x: 5, y: -2 })];
    expect(a.y).toBeLessThan(particle.y);
    for (const { x, y } of [a, particle]) {
      expect(x).toBeGreaterThanOrEqual(20);
      expect(x).toBeLessThanOrEqual(180);
      expect(y).toBeGreaterThanOrEqual(20);
      expect(y).toBeLessThanOrEqual(80);
    }
  });

  it("puts a single spot into the middle", () => {
    const only: ParticleMap = { ...map, answers: [], particles: [{ particle: 0, x: 7, y: 7, answers: 0 }] };
    expect(projection(only, frame)({ x: 7, y: 7 })).toEqual({ x: 100, y: 50 });
  });

  it("draws particles that coincide beside each other", () => {
    const moved = apart(
      [1, 2, 3].map((particle) => ({ particle, x: 50, y: 50 })),
      30,
    );
    moved.forEach((one, index) => {
      for (const other of moved.slice(index + 1)) {
        expect(Math.hypot(one.x - other.x, one.y - other.y)).toBeGreaterThan(29);
      }
    });
    const far = [
      { x: 0, y: 0 },
      { x: 90, y: 0 },
    ];
    expect(apart(far, 30)).toEqual(far);
  });

  it("writes names to the right, else to the left, and leaves out what fits on neither side", () => {
    const spot = (name: string, x: number, y: number) => ({ name, label: name, x, y });
    const spots = [spot("first", 60, 50), spot("second", 61, 51), spot("third", 62, 52), spot("fourth", 120, 80)];
    const chosen = labels(spots, [], frame).map(({ name, isLeft }) => [name, isLeft]);
    expect(chosen).toEqual([
      ["first", false],
      ["second", true],
      ["fourth", false],
    ]);
  });
});
