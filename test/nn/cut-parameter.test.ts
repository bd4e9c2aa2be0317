// Tests parameters that keep a part of their tensor: a part is initialized without the whole, but
// with equal values.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, seed, Tensor } from '../../lib/index.js';

type Box = nn.Box;

const box = (offset: number[], shape: number[]): Box => ({ offset, shape });

/** The same elements of a whole matrix. */
function pickBoxes(fullParameter: nn.Parameter, boxes: readonly Box[]): number[] {
  return boxes.flatMap(({ offset, shape }) =>
    shape
      .reduce<Tensor>(
        (from, size, d) => from.narrow(d, offset[d] as number, size),
        fullParameter.detach(),
      )
      .contiguous()
      .toArray(),
  );
}

const cuts: [string, Box[]][] = [
  ['rows', [box([3, 0], [5, 7])]],
  ['columns', [box([0, 2], [12, 3])]],
  ['rows of thirds', [box([1, 0], [2, 7]), box([5, 0], [2, 7]), box([9, 0], [2, 7])]],
];

const { init } = nn;
const initializers: [string, () => nn.Initializer, boolean][] = [
  ['normal', () => init.normal(0.3, 1), true],
  ['uniform', () => init.uniform(0.3), true],
  ['constant', () => init.constant(2), true],
  ['zeros', () => init.zeros, true],
  ['xavierNormal', () => init.xavierNormal(), true],
  ['kaimingUniform', () => init.kaimingUniform(), true],
  ['truncNormal', () => init.truncNormal(), true],
  ['orthogonal', () => init.orthogonal(), false],
  [
    'a function',
    () => (out) =>
      out.copy_(
        Tensor.from(
          Array.from({ length: out.numel }, (_, i) => i),
          { shape: out.shape },
        ),
      ),
    false,
  ],
];

describe.each(initializers)('%s', (_name, make, makesParts) => {
  test.each(cuts)('by %s', (_cut, boxes) => {
    seed(11);
    const fullParameter = new nn.Parameter([12, 7], make());
    seed(11);
    const initial = make();
    const result: number[] = [];
    const countingInitial: nn.Initializer = (out) => {
      result.push(out.numel);
      initial(out);
    };
    if (initial.part) countingInitial.part = (out, at) => initial.part?.(out, at);
    const part = new nn.Parameter([12, 7], countingInitial).cutTo(boxes);
    expect(part.toArray()).toEqual(pickBoxes(fullParameter, boxes));
    expect(result).toEqual(makesParts ? [] : [84]);
    expect([part.isCut, part.region.whole, part.isMaterialized]).toEqual([true, [12, 7], true]);
  });
});

test('a cut along one dim has its shape there; several boxes lie side by side', () => {
  const shapes = cuts.map(
    ([, boxes]) => new nn.Parameter([12, 7], nn.init.zeros).cutTo(boxes).shape,
  );
  expect(shapes).toEqual([
    [5, 7],
    [12, 3],
    [6, 7],
  ]);
  const fullParameter = new nn.Parameter([12, 7], nn.init.zeros);
  expect([fullParameter.isCut, fullParameter.cutTo([box([0, 0], [12, 7])]).isCut]).toEqual([
    false,
    false,
  ]);
});

test('existing values are kept', () => {
  seed(5);
  const parameter = new nn.Parameter([12, 7], nn.init.normal(1));
  const boxes = cuts[2]?.[1] as Box[];
  const expected = pickBoxes(parameter, boxes);
  expect(parameter.cutTo(boxes).toArray()).toEqual(expected);
});

test('an initializer of a cut parameter uses the shape of the whole tensor', () => {
  const boxes = cuts[1]?.[1] as Box[];
  seed(8);
  const fullParameter = new nn.Parameter([12, 7], nn.init.normal(1));
  for (const materialized of [false, true]) {
    const part = new nn.Parameter([12, 7], nn.init.zeros).cutTo(boxes);
    if (materialized) part.toArray();
    seed(8);
    part.initialize(nn.init.normal(1));
    expect(part.toArray()).toEqual(pickBoxes(fullParameter, boxes));
  }
});

test('only the rank with the padding row of a table zeroes it', () => {
  const table = (boxes: Box[] | null): number[] => {
    seed(3);
    const { weight } = new nn.Embedding(12, 7, { paddingIdx: 4 });
    return (boxes ? weight.cutTo(boxes) : weight).toArray();
  };
  const fullValues = table(null);
  expect(table([box([3, 0], [5, 7])])).toEqual(fullValues.slice(21, 56));
  expect(table([box([5, 0], [7, 7])])).toEqual(fullValues.slice(35));
});

test('boxes that have no common shape are refused', () => {
  const cut = (boxes: Box[]) => () => new nn.Parameter([12, 7], nn.init.zeros).cutTo(boxes);
  const refused = expect.objectContaining({ code: 'DS_SHAPE' });
  expect(cut([box([0, 0], [3, 3])])).toThrow(refused);
  expect(cut([box([0, 0], [12, 2]), box([0, 4], [12, 2])])).toThrow(refused);
  expect(cut([box([0, 0], [3, 7]), box([2, 0], [3, 7])])).toThrow(refused);
  expect(cut([box([10, 0], [3, 7])])).toThrow(refused);
});

describe('values in files', () => {
  let dir: string;
  beforeAll(() => {
    dir = mkdtempSync(join(tmpdir(), 'ds-cut-'));
  });
  afterAll(() => rmSync(dir, { recursive: true, force: true }));

  test('loadWeights fills the parts of a cut model; saveWeights refuses one', async () => {
    const make = () => new nn.Sequential(new nn.Linear(7, 12), new nn.Linear(12, 7));
    seed(4);
    const fullSequential = make();
    const file = join(dir, 'whole.safetensors');
    await nn.saveWeights(fullSequential, file);
    for (const isUsed of [false, true]) {
      const part = make();
      const [first, second] = [...part] as [nn.Linear, nn.Linear];
      first.weight.cutTo([box([3, 0], [5, 7])]);
      first.bias?.cutTo([box([3], [5])]);
      second.weight.cutTo([box([0, 3], [7, 5])]);
      if (isUsed) for (const parameter of part.parameters()) parameter.toArray();
      await nn.loadWeights(part, file);
      const expected = new Map(fullSequential.namedParameters());
      for (const [name, parameter] of part.namedParameters()) {
        const of = expected.get(name) as nn.Parameter;
        expect(parameter.toArray()).toEqual(pickBoxes(of, parameter.region.boxes));
      }
      const saved = nn.saveWeights(part, join(dir, 'part.safetensors'));
      await expect(saved).rejects.toThrow(/with a part of 0\.weight/);
    }
  });

  test.each([
    ['fp32', 'f32'],
    ['bf16', 'bf16'],
  ] as const)('are read part by part, %s', async (saved, dtype) => {
    const { GPT2 } = nn.models;
    seed(1);
    const model = new GPT2({ vocabSize: 37, maxSeq: 8, layers: 1, heads: 2, channels: 16 });
    const folder = join(dir, dtype);
    await model.save(folder, { dtype: saved });
    const [whole, part] = await Promise.all([1, 2].map(() => GPT2.fromPretrained(folder)));
    const cutsOf: Record<string, Box[]> = {
      'transformer.wte.weight': [box([19, 0], [18, 16])],
      'transformer.h.0.attn.c_attn.weight': [0, 1, 2].map((third) =>
        box([16 * third + 8, 0], [8, 16]),
      ),
      'transformer.h.0.attn.c_attn.bias': [0, 1, 2].map((third) => box([16 * third + 8], [8])),
      'transformer.h.0.attn.c_proj.weight': [box([0, 8], [16, 8])],
      'transformer.wpe.weight': [box([0, 5], [8, 3])],
    };
    const localEntries = new Map(part?.namedParameters());
    for (const [name, parameter] of whole?.namedParameters() ?? []) {
      const boxes = cutsOf[name];
      const other = localEntries.get(name) as nn.Parameter;
      expect(other.stored).not.toBeNull();
      if (boxes) expect(other.cutTo(boxes).stored).not.toBeNull();
      expect([name, other.dtype, other.toArray()]).toEqual([
        name,
        dtype,
        boxes ? pickBoxes(parameter, boxes) : parameter.toArray(),
      ]);
    }
  });
});
