// Tests which recorded steps an engine keeps, with a recorder that replays them.
import { rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { cpu, DsError, initInference, nn, scope, Tensor } from '../../lib/index.js';
import type { Sequence } from '../../lib/inference/sequence.js';
import { type Recorder, StepGraphs } from '../../lib/inference/step-graphs.js';
import { type EngineFlags, readEngineOptions } from '../../lib/launch/engine-flags.js';
import { linear } from '../../lib/tensor/index.js';
import { placeResult } from '../../lib/tensor/tensor.js';

const V = 3;
/** Graphs that the engine keeps. */
const MOST = 52;

/** Instead of recording, runs the function again. Reports the fate of each step, by its number. */
function recorder(fail: (count: number) => (Error & { isLate?: boolean }) | null = () => null) {
  const reported: string[] = [];
  let result = 0;
  const record: Recorder = (_device, body, onRun) => {
    const id = result++;
    const error = fail(id);
    if (error && !error.isLate) throw error;
    body();
    onRun();
    if (error) throw error;
    reported.push(`record ${id}`);
    return { launch: body, dispose: () => reported.push(`drop ${id}`) };
  };
  return { record, reported };
}

function graphsWith(record: Recorder): StepGraphs {
  const sizes = { sequences: 1024, width: 4096, vocabSize: V, dtype: 'f32' as const };
  return new StepGraphs(cpu(), sizes, record);
}

/** The scores of a step with `value` as its numbers. */
function step(graphs: StepGraphs, rows: number, width: number, value: number): number[] {
  return scope(() => {
    const forward = (): Tensor => Tensor.empty([rows, V], 'f32', cpu()).fill_(value);
    return graphs.run({ rows, width, tiles: 0 }, forward).toArray();
  });
}

/** The warnings of the process while `body` runs. */
async function warningsDuring(body: () => unknown): Promise<string[]> {
  const spy = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
  try {
    await body();
    return spy.mock.calls.map(([text]) => String(text));
  } finally {
    spy.mockRestore();
  }
}

const short = () =>
  new DsError({ code: 'DS_OUT_OF_MEMORY', op: 'graph', expected: 'memory', got: 'none' });

/** More shapes than the engine keeps. */
const forms = [1, 2, 4, 8, 16, 24, 32].flatMap((rows) =>
  [8, 16, 32, 64, 128, 256, 512, 1024].map((width) => [rows, width] as const),
);

test('a graph is recorded once per shape, and the least recently used one is dropped', () => {
  const { record, reported } = recorder();
  const graphs = graphsWith(record);
  forms.slice(0, MOST).forEach(([rows, width], i) => {
    expect(step(graphs, rows, width, i)).toEqual(Array(rows * V).fill(i));
  });
  expect(reported).toHaveLength(MOST);
  expect(step(graphs, 1, 8, 0)).toEqual([0, 0, 0]);
  expect(reported).toHaveLength(MOST);
  step(graphs, ...(forms[MOST] as [number, number]), MOST);
  step(graphs, ...(forms[MOST + 1] as [number, number]), MOST + 1);
  // The first one was replayed since.
  expect(reported.slice(MOST)).toEqual([
    'drop 1',
    `record ${MOST}`,
    'drop 2',
    `record ${MOST + 1}`,
  ]);
  expect(graphs.count).toBe(MOST);
  step(graphs, 1, 16, 5);
  expect(reported.slice(MOST + 4)).toEqual(['drop 3', `record ${MOST + 2}`]);
  graphs.dispose();
  expect(graphs.count).toBe(0);
  expect(reported.filter((text) => text.startsWith('drop'))).toHaveLength(MOST + 3);
});

test.each(['before it has run', 'late'])('too little memory for a graph, %s', async (when) => {
  const fail = (id: number) => {
    if (id !== 9) return null;
    return when === 'late' ? Object.assign(short(), { isLate: true }) : short();
  };
  const { record, reported } = recorder(fail);
  const graphs = graphsWith(record);
  const warnings = await warningsDuring(() => {
    forms.slice(0, 12).forEach(([rows, width], i) => {
      expect(step(graphs, rows, width, i)).toEqual(Array(rows * V).fill(i));
    });
  });
  expect(warnings).toHaveLength(1);
  expect(warnings[0]).toMatch(/at most 5 recorded steps/);
  expect(reported.filter((text) => text.startsWith('drop'))).toHaveLength(9);
  expect(graphs.count).toBe(2);
  for (const [i, [rows, width]] of forms.slice(20, 30).entries()) step(graphs, rows, width, i);
  expect(graphs.count).toBe(5);
  graphs.dispose();
});

test('steps that cannot be recorded run directly, and their own errors are thrown', async () => {
  const late = Object.assign(new Error('no'), { isLate: true });
  const graphs = graphsWith(recorder(() => late).record);
  const warnings = await warningsDuring(() => expect(step(graphs, 1, 8, 7)).toEqual([7, 7, 7]));
  expect(warnings[0]).toMatch(/cannot be recorded.*one by one/);
  const sequence = { length: 1, extent: 1 } as never;
  expect(graphs.paddingFor([{ sequence, first: 0, count: 1 }], 64)).toBeNull();
  graphs.dispose();
  const broken = graphsWith(recorder(() => new Error('weights are gone')).record);
  expect(() => step(broken, 1, 8, 7)).toThrow('weights are gone');
  broken.dispose();
});

test.each([
  [256, 256],
  [300, 320],
  [512, 512],
  [513, 640],
  [1024, 1024],
  [1025, null],
])('a step of %d sequences is padded to %j', (count, rows) => {
  const graphs = graphsWith(recorder().record);
  const slices = Array.from({ length: count }, () => {
    return { sequence: { length: 1, extent: 1, adapter: -1 } as never, first: 0, count: 1 };
  });
  expect(graphs.paddingFor(slices, 64)?.rows ?? null).toBe(rows);
  graphs.dispose();
});

test.each([
  [1, 128, 8],
  [3, 128, 16],
  [32, 128, 32],
  // With padding rows, which have no adapter.
  [32, 40, 32 + 3],
  [32, 20, 1 + 24 + 2],
  [30, 129, 32 + 12],
  [8, 8, 8],
])('%d adapters of %d rows run in %d tiles', (adapters, count, tiles) => {
  const sizes = { sequences: 256, width: 8, vocabSize: V, dtype: 'f32' as const, adapters: 32 };
  const graphs = new StepGraphs(cpu(), sizes, recorder().record);
  const slices = Array.from({ length: count }, (_, row) => {
    const sequence = { length: 1, extent: 1, adapter: row % adapters } as never;
    return { sequence, first: 0, count: 1 };
  });
  expect(graphs.paddingFor(slices, 64)?.tiles).toBe(tiles);
  graphs.dispose();
});

test.each([
  { proposals: 0, count: 1, expected: { decoding: {}, alone: {} } },
  { proposals: 3, count: 4, expected: { decoding: { ends: 4 }, alone: { ends: 4 } } },
  // The last tokens of a prompt.
  { proposals: 0, count: 3, expected: { decoding: null, alone: { ends: 1 } } },
  { proposals: 40, count: 41, expected: { decoding: null, alone: null } },
  { proposals: 0, count: 1, left: 1, expected: { decoding: null, alone: null } },
])('a step of one sequence with $proposals proposals and $count tokens', (input) => {
  const { proposals, count, left = 0, expected } = input;
  const sequence = {
    extent: 70 + count + left,
    adapter: -1,
    proposals: Array(proposals).fill(0),
  } as unknown as Sequence;
  for (const recorded of ['decoding', 'drafting', 'alone'] as const) {
    const sizes = { sequences: 4, width: 8, vocabSize: V, dtype: 'f32' as const, recorded };
    const graphs = new StepGraphs(cpu(), { ...sizes, lanes: 8 }, recorder().record);
    const own = expected[recorded === 'drafting' ? 'alone' : recorded];
    const padding = own && { rows: count, width: 8, tiles: 0, ...own };
    expect(graphs.paddingFor([{ sequence, first: 70, count }], 64)).toEqual(padding);
    graphs.dispose();
  }
});

test('a step of few tokens of one sequence has a graph of its own, and scores of its ends', () => {
  const { record, reported } = recorder();
  const graphs = graphsWith(record);
  const forms = [{}, { ends: 4 }, { ends: 1 }, { ends: 4 }];
  const rows = forms.map((form) =>
    scope(() => {
      const count = form.ends ?? 4;
      const forward = (): Tensor => Tensor.empty([count, V], 'f32', cpu()).fill_(count);
      return graphs.run({ rows: 4, width: 8, tiles: 0, ...form }, forward).size(0);
    }),
  );
  expect(rows).toEqual([4, 4, 1, 4]);
  expect(reported).toEqual(['record 0', 'record 1', 'record 2']);
  graphs.dispose();
});

test('a step may write its scores where the graphs keep them, or return others', () => {
  const { record } = recorder();
  const graphs = graphsWith(record);
  const padding = { rows: 4, width: 8, tiles: 0 };
  const run = (forward: (into: Tensor) => Tensor): number[] =>
    scope(() => graphs.run({ ...padding, width: padding.width++ }, forward).toArray());
  expect(run((into) => into.fill_(3))).toEqual(Array(4 * V).fill(3));
  const placed = (into: Tensor): Tensor => {
    const make = () => Tensor.empty([4, V], 'f32', cpu());
    const made = placeResult(into, () => {
      make().fill_(5);
      return make().fill_(6);
    });
    expect(into.toArray()).toEqual(Array(4 * V).fill(5));
    return made;
  };
  expect(run(placed)).toEqual(Array(4 * V).fill(6));
  graphs.dispose();
});

test('only a tensor of the same kind gets the memory for a result, once', () => {
  scope(() => {
    const memory = Tensor.empty([2, 3], 'f32', cpu()).fill_(1);
    const [x, weight] = [
      [2, 4],
      [3, 4],
    ].map((shape) => Tensor.empty(shape, 'f32', cpu()).fill_(1));
    const made = placeResult(memory, () => {
      const others = [Tensor.empty([3, 2], 'f32', cpu()), Tensor.empty([2, 3], 'i32', cpu())];
      for (const other of others) expect(other.buffer).not.toBe(memory.buffer);
      return linear(x as Tensor, weight as Tensor);
    });
    expect(made.buffer).toBe(memory.buffer);
    expect(memory.toArray()).toEqual(Array(6).fill(4));
    const failing = () => {
      throw new Error('no result');
    };
    expect(() => placeResult(memory, failing)).toThrow('no result');
    expect(Tensor.empty([2, 3], 'f32', cpu()).buffer).not.toBe(memory.buffer);
  });
});

test('"auto" checks whether graphs can be recorded, without a notice on the CPU', async () => {
  const sizes = { vocabSize: 17, maxSeq: 16, layers: 1, channels: 8, heads: 2, hidden: 8 };
  const open = (enable_cuda_graph: boolean | 'auto') => async () => {
    const model = new nn.models.Llama(sizes);
    const engine = await initInference(model, { device: 'cpu', enable_cuda_graph });
    await engine.destroy();
  };
  expect(await warningsDuring(open('auto'))).toEqual([]);
  expect((await warningsDuring(open(true)))[0]).toMatch(/enable_cuda_graph has no effect/);
});

test('ds serve and ds chat default to "auto"', () => {
  const file = join(tmpdir(), `ds-engine-${process.pid}.json`);
  const graphsFor = (flags: Partial<EngineFlags>): unknown =>
    readEngineOptions({ graphs: true, ...flags }).config?.enable_cuda_graph;
  expect(graphsFor({})).toBe('auto');
  expect(graphsFor({ graphs: false })).toBe(false);
  writeFileSync(file, '{"enable_cuda_graph": true}');
  expect(graphsFor({ config: file })).toBe(true);
  expect(graphsFor({ config: file, graphs: false })).toBe(false);
  rmSync(file);
});
