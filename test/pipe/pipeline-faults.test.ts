// Tests that a fault in one stage raises an error on every rank, without a deadlock.
import { initialize, liveTensors, nn, PipelineModule, seed, Tensor } from '../../lib/index.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import { quiet } from '../support/quiet.js';
import type { Fault } from './fault-process.js';

async function messagesOf(fault: Fault, ranks = 2): Promise<string[]> {
  const results = await runRanks('../pipe/fault-process', ranks, { job: fault });
  return reportsOf<string>(results);
}

test('the other stage reports a stage that dies in forward or backward', async () => {
  for (const [kind, rank] of [
    ['dies in forward', 1],
    ['dies in forward', 0],
    ['dies in backward', 1],
  ] as const) {
    const results = await runRanks('../pipe/fault-process', 2, { job: { kind, rank } });
    const other = results[1 - rank];
    expect([kind, rank, String(other?.report)]).toEqual([
      kind,
      rank,
      expect.stringMatching(new RegExp(`^DS_COMM .*rank ${rank}`)),
    ]);
  }
});

/** Job timeouts are 600 s, longer than the timeout of this test. */
test('an error of one stage reaches all ranks at once, while that stage stays', async () => {
  for (const [kind, rank, stages, error] of [
    ['throws at once', 0, 3, 'a layer of mine'],
    ['throws in backward', 1, 3, 'a gradient of mine'],
    ['throws in evaluation', 1, 2, 'a layer of mine'],
    ['short iterator', 1, 2, 'an iterator that ended after 2'],
    ['no iterator', 0, 2, 'engine.trainBatch: expected an iterator of micro-batches'],
    ['no inputs', 0, 2, 'engine.trainBatch, inputs: expected a tensor, or a list'],
    ['gives nothing', 1, 2, 'pipeline layer 2: expected a tensor, or a list'],
    ['evaluates alone', 1, 2, 'engine.train() before it'],
  ] as const) {
    const reports = await messagesOf({ kind, rank, stages, stays: true }, stages);
    for (const [other, report] of reports.entries()) {
      expect([kind, other, report]).toEqual([kind, other, expect.stringContaining(error)]);
      expect([kind, other, report.startsWith('DS_COMM')]).toEqual([kind, other, other !== rank]);
    }
  }
});

test('an error of a stage reaches its data ranks, and an error on all ranks ends nothing', async () => {
  const reports = await messagesOf(
    { kind: 'throws in forward', rank: 2, stages: 2, stays: true },
    4,
  );
  expect(reports[2]).toMatch(/^Error a layer of mine/);
  for (const other of [0, 1, 3]) expect(reports[other]).toMatch(/^DS_COMM .*a layer of mine/);
  expect(await messagesOf({ kind: 'all throw', rank: 0 })).toEqual(['trained 3', 'trained 3']);
});

test('the first transfer detects ranks with different batch sizes', async () => {
  for (const [kind, own, other] of [
    ['more micro-batches', '6 in training', '3 in training'],
    ['more evaluated', '2 in evaluation', '1 in evaluation'],
  ] as const) {
    for (const rank of [0, 1]) {
      for (const report of await messagesOf({ kind, rank })) {
        expect([kind, rank, report]).toEqual([kind, rank, expect.stringMatching(/^DS_COMM /)]);
        for (const batch of [own, other]) expect(report).toContain(`micro-batch 0 of ${batch}`);
      }
    }
  }
});

test('the first batch detects ranks with two kinds of batches', async () => {
  for (const stages of [2, 3]) {
    for (const rank of [0, stages - 1]) {
      const reports = await messagesOf(
        { kind: 'evaluates first', rank, stages, stays: true },
        stages,
      );
      for (const report of reports) {
        expect([rank, report]).toEqual([rank, expect.stringMatching(/^DS_COMM /)]);
        expect([rank, report]).toEqual([rank, expect.stringMatching(/in evaluation/)]);
        expect([rank, report]).toEqual([rank, expect.stringMatching(/in training/)]);
      }
    }
  }
});

test('changed shapes are refused at their stage, and accepted if the model declares them', async () => {
  const [first] = await messagesOf({ kind: 'shapes', rank: 0, stays: true });
  expect(first).toMatch(
    /^DS_SHAPE pipeline, output of stage 0: expected \[4, 8\] f32, as in the first micro-batch, got \[2, 8\] f32\. .*dynamicShape/,
  );
  const both = await messagesOf({ kind: 'dynamic shapes', rank: 0 });
  expect(both).toEqual(['trained 3', 'trained 3']);
});

test('unsupported calls of a pipeline are refused by name, on every rank', async () => {
  for (const [kind, expected] of [
    ['stage 2', /^DS_CONFIG zero_optimization\.stage: expected 0 or 1 for a pipeline/],
    ['more stages', /^DS_ARGUMENT pipeline: expected at most 1 stages/],
    ['forward', /^DS_AUTOGRAD engine\.forward: expected engine\.trainBatch\(\)/],
    [
      'other stages',
      /^DS_CONFIG pipeline\.stages: expected 2, the ranks on the mesh's axis pp, got 3/,
    ],
    ['tied Muon', /^DS_CONFIG optimizer\.type: expected an elementwise optimizer/],
  ] as const) {
    const reports = await messagesOf({ kind, rank: 0, stays: true });
    for (const report of reports) {
      expect([kind, report]).toEqual([kind, expect.stringMatching(expected)]);
      expect(report).not.toContain('left sparse');
    }
  }
});

const SIZES = { vocabSize: 11, maxSeq: 4, layers: 1, heads: 2, channels: 8 };

test('an invalid batch is refused with the expected form', async () => {
  const tokens = Tensor.from(Int32Array.of(1, 2, 3, 4), { shape: [1, 4] });
  const config = {
    train_micro_batch_size_per_gpu: 1,
    optimizer: { type: 'AdamW', params: { lr: 0.01 } },
    pipeline: { stages: 1 },
  } as const;
  const of = (...items: unknown[]) => items.values();
  const { GPT2, Llama } = nn.models;
  for (const model of [new GPT2(SIZES), new Llama({ ...SIZES, kvHeads: 1, hidden: 8 })]) {
    const { engine } = await initialize({ model, config, device: 'cpu' });
    for (const [batches, code, message] of [
      [of([[tokens], tokens]), 'DS_ARGUMENT', /^(GPT2|Llama): expected a tensor, got an array/],
      [of([tokens, [tokens]]), 'DS_ARGUMENT', /expected an index tensor .*, got an array/],
      [of([tokens.reshape([4]), tokens]), 'DS_SHAPE', /expected tokens \[B, T\]/],
      [of([tokens]), 'DS_DATA', /expected micro-batches \[inputs, labels\], got an array/],
      [{ next: () => undefined }, 'DS_ARGUMENT', /next\(\) of the iterator .*, got undefined/],
      [[[tokens, tokens]], 'DS_ARGUMENT', /expected an iterator of micro-batches, got an array/],
    ] as const) {
      const thrown = await engine.trainBatch(batches as never).catch((error) => error);
      expect(thrown).toMatchObject({ code, message: expect.stringMatching(message) });
    }
    expect((await engine.trainBatch(of([tokens, tokens]))).item()).toBeGreaterThan(0);
    engine.destroy();
  }
});

test('weights in shards are refused on one stage as on several', async () => {
  const config = {
    train_micro_batch_size_per_gpu: 1,
    optimizer: { type: 'AdamW', params: { lr: 0.01 } },
    zero_optimization: { stage: 3, offload_param: { device: 'cpu' } },
    pipeline: { stages: 1 },
  } as const;
  const model = new nn.models.Llama({ ...SIZES, kvHeads: 1, hidden: 8 });
  await expect(initialize({ model, config, device: 'cpu' })).rejects.toMatchObject({
    code: 'DS_CONFIG',
    op: 'zero_optimization.stage',
    message: expect.stringMatching(/expected 0, 1 or 2 for a pipeline of one stage, .* got 3/),
  });
});

test('a failed batch leaves no state, and can be passed again', async () => {
  let good = Number.POSITIVE_INFINITY;
  const model = () =>
    new PipelineModule({
      layers: [new nn.Linear(4, 8), (x: Tensor) => x.tanh(), new nn.Linear(8, 1)],
      lossFn: (outputs: Tensor, labels: Tensor) => {
        if (good-- === 0) throw new Error('labels of no kind');
        return outputs.sub(labels).pow(2).mean();
      },
    });
  const config = {
    train_micro_batch_size_per_gpu: 2,
    gradient_accumulation_steps: 3,
    optimizer: { type: 'AdamW', params: { lr: 0.01 } },
    pipeline: { schedule: 'interleaved', stages_per_rank: 3 },
    seed: 3,
  } as const;
  const [x, y] = [
    Tensor.from([1, 2, 3, 4, 5, 6, 7, 8], { shape: [2, 4] }),
    Tensor.from([[1], [2]]),
  ];
  /** With `fails`, the third micro-batch of the second batch fails at first. */
  const losses = async (fails: boolean): Promise<number[]> => {
    seed(3);
    const { engine } = await initialize({ model: model(), config, device: 'cpu' });
    let asked = 0;
    const options = {
      next: () => {
        asked++;
        return { value: [x, y], done: false } as const;
      },
    };
    const found = [(await engine.trainBatch(options)).item()];
    if (fails) {
      good = 2;
      await expect(engine.trainBatch(options)).rejects.toThrow('labels of no kind');
      good = Number.POSITIVE_INFINITY;
      expect(asked).toBe(6);
    }
    found.push(
      (await engine.trainBatch(options)).item(),
      (await engine.trainBatch(options)).item(),
    );
    engine.destroy();
    return found;
  };
  const fullValues = await losses(false);
  await quiet();
  const before = liveTensors();
  expect(await losses(true)).toEqual(fullValues);
  expect(liveTensors()).toBeLessThanOrEqual(before + 8); // The model's parameters and the losses.
});
