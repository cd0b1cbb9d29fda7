import { describe, expect, it } from "vitest";

import { pathText } from "./path";
import {
  anchor,
  follow,
  join,
  negate,
  nodeAt,
  remove,
  replaceEntity,
  replaceStep,
  swapJoining,
  type Named,
  type Step,
  type Tree,
} from "./tree";

const named = (name: string): Named => ({ name, label: name });
const back = (name: string): Step => ({ relation: named(name), inverse: true });
const forth = (name: string): Step => ({ relation: named(name), inverse: false });

const TURING = '("Turing Award".^award_received & !Canada.^citizen_of).graduated_from';

function turing(): Tree {
  let tree = follow(anchor(named("Turing Award")), [], back("award_received"));
  const joined = join(tree, [], "intersect", named("Canada"));
  tree = follow(joined.tree, joined.place, back("citizen_of"));
  tree = negate(tree, joined.place);
  return follow(tree, [], forth("graduated_from"));
}

describe("edits", () => {
  it("build the Turing question", () => {
    expect(pathText(turing())).toBe(TURING);
  });

  it("leave the tree they start from as it was", () => {
    const tree = turing();
    negate(tree, []);
    remove(tree, [0, 0]);
    expect(pathText(tree)).toBe(TURING);
  });

  it("add a third branch instead of nesting", () => {
    const tree = turing();
    const joint = join(tree, [0], "intersect", named("Spain"));
    const branch = join(tree, [0, 1], "intersect", named("Spain"));
    expect(pathText(joint.tree)).toBe('("Turing Award".^award_received & !Canada.^citizen_of & Spain).graduated_from');
    expect(branch).toEqual(joint);
    expect(nodeAt(joint.tree, joint.place)).toEqual(anchor(named("Spain")));
  });

  it("nest what is joined otherwise", () => {
    const { tree, place } = join(turing(), [0, 0, 0], "union", named("Nobel Prize"));
    expect(pathText(tree)).toBe(
      '(("Turing Award" | "Nobel Prize").^award_received & !Canada.^citizen_of).graduated_from',
    );
    expect(place).toEqual([0, 0, 0, 1]);
  });

  it("undo a not, at it and right below it", () => {
    const without = '("Turing Award".^award_received & Canada.^citizen_of).graduated_from';
    expect(pathText(negate(turing(), [0, 1]))).toBe(without);
    expect(pathText(negate(turing(), [0, 1, 0]))).toBe(without);
  });

  it("replace names, turn relations around and swap and with or", () => {
    expect(pathText(replaceEntity(turing(), [0, 1, 0, 0], named("Norway")))).toContain("!Norway.^citizen_of");
    expect(pathText(replaceStep(turing(), [], back("graduated_from")))).toMatch(/\)\.\^graduated_from$/u);
    expect(pathText(swapJoining(turing(), [0]))).toBe(
      '("Turing Award".^award_received | !Canada.^citizen_of).graduated_from',
    );
  });

  it("close up where a step is removed, and take a branch away with its anchor", () => {
    const left = (place: number[]) => {
      const tree = remove(turing(), place);
      return tree && pathText(tree);
    };
    expect(left([])).toBe('"Turing Award".^award_received & !Canada.^citizen_of');
    expect(left([0, 1, 0, 0])).toBe('"Turing Award".^award_received.graduated_from');
    expect(left([0, 0, 0])).toBe("(!Canada.^citizen_of).graduated_from");
    expect(left([0])).toBeNull();
    expect(remove(anchor(named("Canada")), [])).toBeNull();
  });

  it("keep the other branches of three", () => {
    const { tree, place } = join(turing(), [0], "intersect", named("Spain"));
    expect(remove(tree, place)).toEqual(turing());
  });
});
