// Calls every native op with dims of size 0. It refuses them, or writes its outputs.
import { DsError } from '../../lib/errors.js';
import { cpu } from '../../lib/runtime/device.js';
import { opNames } from '../../lib/runtime/kernels.generated.js';
import { numel } from '../../lib/runtime/view.js';
import {
  checkSameBits,
  checkUntouched,
  execute,
  type Images,
  imagesOf,
  type MatrixCase,
  type Operand,
  type OpName,
  type Problem,
  poisonGaps,
} from './matrix/harness.js';
import { opCases } from './matrix/index.js';

/** Cases of an op: small ones, the ones with the most distinct sizes first. */
const CASES = 6;
/** Cases that are built to find them: building all of them takes longer than the calls. */
const SAMPLED = 100;
const MAX_ELEMENTS = 20_000;

/** Ops whose sizes are sums of others: no case takes a dim of size 0. */
const REFUSING: readonly OpName[] = ['AdapterSum'];

const device = cpu();

/** Returns the size of a dim after the size `from` has become 0. */
type Resize = (size: number, from: number) => number;

/** Dims that follow from a size: equal ones, lists of sequences, products. */
const resizes: readonly Resize[] = [
  (size, from) => (size === from ? 0 : size),
  (size, from) => (size === from ? 0 : size === from + 1 ? 1 : size),
  (size, from) => (from > 1 && size % from === 0 ? 0 : size),
];

const sizesOf = ({ operands }: Problem): number[] =>
  [...new Set(Object.values(operands).flatMap((operand) => operand?.shape ?? []))].filter(
    (size) => size > 0,
  );

const elementsOf = ({ operands }: Problem): number =>
  Object.values(operands).reduce((sum, operand) => sum + numel(operand?.shape ?? [0]), 0);

/** The problem with some sizes 0, in contiguous operands. */
function emptied(problem: Problem, sizes: readonly number[], resize: Resize): Problem {
  const cut = (operand: Operand): Operand => {
    const shape = operand.shape.map((size) =>
      sizes.reduce((all, from) => (all === 0 ? 0 : resize(all, from)), size),
    );
    const values = operand.values && Array.from(operand.values).slice(0, numel(shape));
    const { strides: _, lead: __, ...rest } = operand;
    return { ...rest, shape, values };
  };
  const operands = Object.entries(problem.operands).map(([name, operand]) => [
    name,
    operand && cut(operand),
  ]);
  return { ...problem, operands: Object.fromEntries(operands) };
}

/** Single sizes, and pairs of sizes. */
function choices(sizes: readonly number[]): number[][] {
  return sizes.flatMap((a, i) => [[a], ...sizes.slice(i + 1).map((b) => [a, b])]);
}

/** Runs the op twice with different poison in its outputs. Returns false if it refuses the dims. */
function writesAll(op: OpName, problem: Problem): boolean {
  const images = imagesOf(problem, 0xff);
  const other: Images = {};
  for (const [name, image] of Object.entries(images)) other[name] = poisonGaps(image, 0x55);
  let results: [Images, Images];
  try {
    results = [execute(device, op, problem, images), execute(device, op, problem, other)];
  } catch (error) {
    if (error instanceof DsError) return false;
    throw error;
  }
  for (const [name, image] of Object.entries(images)) {
    const [after, again] = results.map((result) => result[name]) as [typeof image, typeof image];
    checkUntouched(name, image, after);
    if (image.operand.check) checkSameBits(name, after, again, 'the same bits in a second run');
  }
  return true;
}

/** About `count` items, evenly spaced. */
const sampleOf = <Item>(items: readonly Item[], count: number): Item[] =>
  items.filter((_, i) => i % Math.ceil(items.length / count) === 0);

const casesOf = (op: OpName): MatrixCase[] =>
  sampleOf(
    opCases.filter((one) => one.op === op),
    SAMPLED,
  )
    .map((one) => ({ one, problem: one.build() }))
    .filter(({ problem }) => elementsOf(problem) < MAX_ELEMENTS)
    .map(({ one, problem }) => ({ one, count: sizesOf(problem).length }))
    .sort((a, b) => b.count - a.count)
    .slice(0, CASES)
    .map(({ one }) => one);

/** Shapes and arguments of a problem as text. */
const describe = ({ operands, args }: Problem): string => {
  const shapes = Object.entries(operands).map(([name, one]) => one && `${name} [${one.shape}]`);
  return [...shapes.filter((text) => text !== null), JSON.stringify(args ?? {})].join(' ');
};

/** Whether there are tokens that belong to no sequence: a step leaves their outputs as they are. */
const hasStrayTokens = ({ operands: { starts, lengths, out } }: Problem): boolean =>
  starts != null && lengths?.shape[0] === 0 && numel(out?.shape ?? [0]) > 0;

test.each(opNames)('%s', (op) => {
  const seen = new Set<string>();
  const faults: string[] = [];
  let accepted = 0;
  for (const one of casesOf(op)) {
    const problem = one.build();
    for (const sizes of choices(sizesOf(problem))) {
      for (const resize of resizes) {
        const small = emptied(problem, sizes, resize);
        const name = `${one.name}: ${describe(small)}`;
        if (seen.has(name) || hasStrayTokens(small)) continue;
        seen.add(name);
        try {
          if (writesAll(op, small)) accepted++;
        } catch (error) {
          faults.push(`${name}: ${(error as Error).message}`);
        }
      }
    }
  }
  expect(faults).toEqual([]);
  expect(accepted > 0).toBe(!REFUSING.includes(op));
});
