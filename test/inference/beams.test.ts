// Runs the cases of beam search on the CPU, and tests its errors.
import { BeamTree } from '../../lib/inference/beam-tree.js';
import { type BeamOptions, beamSearch } from '../../lib/inference/beams.js';
import { type InferenceEngine, initInference } from '../../lib/inference/index.js';
import { type CausalLM, fromPretrained } from '../../lib/models/index.js';
import { liveTensors } from '../../lib/tensor/index.js';
import { testOnCpu } from '../support/jest-cases.js';
import { quiet } from '../support/quiet.js';
import { cases, folderOf } from './beams.cases.js';

testOnCpu('beam search', cases);

let loaded: Promise<CausalLM> | null = null;
function tiny(): Promise<CausalLM> {
  loaded ??= fromPretrained(folderOf('gpt2'), { dtype: 'f32' });
  return loaded;
}

afterAll(async () => {
  for (const parameter of (await tiny()).parameters()) parameter.dispose();
});

test('a search with one beam selects the likeliest token in each step', async () => {
  const model = await tiny();
  const [beam] = await beamSearch(model, [3, 5], { numBeams: 1, maxNewTokens: 9 });
  const greedy = model.generate([3, 5], { maxNewTokens: 9, temperature: 0 });
  expect([3, 5, ...(beam?.tokens ?? [])]).toEqual(greedy);
});

test.each<[object, RegExp]>([
  [{ numBeams: 0 }, /numBeams: expected an integer from 1 to 16384/],
  [{ n: 3 }, /n: expected at most numBeams, 2, got 3/],
  [{ earlyStopping: 'always' }, /earlyStopping: expected true, false or "never"/],
  [{ lengthPenalty: Number.NaN }, /lengthPenalty: expected a finite number/],
  [
    { temperature: 0.7 },
    /temperature: expected the default, because a beam search does not sample, got 0.7/,
  ],
  [{ seed: 1 }, /seed: expected the default, because a beam search does not sample/],
  [{ topP: 0.9 }, /topP: expected the default, because a beam search does not sample/],
  [{ stopTokens: [-1] }, /tokens from 0 to/],
  [{ maxNewTokens: 100_000 }, /prompt: expected 1 to \d+ tokens, including maxNewTokens/],
  [{ num_beam: 2 }, /Did you mean "numBeams"/],
])('%j is refused', async (wrong, message) => {
  const model = await tiny();
  const options = { numBeams: 2, maxNewTokens: 3, ...wrong } as BeamOptions;
  await expect(beamSearch(model, [1], options)).rejects.toThrow(message);
});

test('a signal ends a search', async () => {
  const model = await tiny();
  const stop = new AbortController();
  await quiet();
  const before = liveTensors();
  const options = { numBeams: 2, maxNewTokens: 50, signal: stop.signal };
  const search = beamSearch(model, [1], options);
  stop.abort(new Error('enough'));
  await expect(search).rejects.toThrow('enough');
  expect(liveTensors()).toBe(before);
});

describe('by an engine', () => {
  let engine: InferenceEngine;
  const request = { prompt: [3, 5], maxNewTokens: 9, numBeams: 3, ignoreEos: true };

  beforeAll(async () => {
    engine = await initInference(folderOf('gpt2'), { dtype: 'fp32', device: 'cpu' });
  });
  afterAll(() => engine.destroy());

  test('generate() returns the beams of a search, also in a batch with others', async () => {
    const model = await tiny();
    const found = await beamSearch(model, [3, 5], { numBeams: 3, n: 2, maxNewTokens: 9 });
    const greedy = { prompt: [3, 5], maxNewTokens: 9, temperature: 0, ignoreEos: true };
    const before = engine.stats();
    const [beams, [single]] = await Promise.all([
      engine.generate({ ...request, n: 2 }),
      engine.generate(greedy),
    ]);
    expect(beams.map(({ tokens }) => tokens)).toEqual(found.map(({ tokens }) => tokens));
    expect(beams[0]).toMatchObject({ finishReason: 'length', promptTokens: 2, cachedTokens: 0 });
    expect(single?.tokens).toHaveLength(9);
    const { generatedTokens, finished } = engine.stats();
    expect(generatedTokens - before.generatedTokens).toBe(27);
    expect(finished.length - before.finished.length).toBe(3);
  });

  test('a stop token is the last token of its output', async () => {
    const [free] = await engine.generate(request);
    const end = free?.tokens[0] as number;
    const [ended] = await engine.generate({ ...request, stopTokens: [end], lengthPenalty: -2 });
    expect(ended).toMatchObject({ tokens: [end], finishReason: 'stop' });
  });

  test.each([
    [{ stop: ['x'] }, /stop: expected/],
    [{ n: 4 }, /n: expected at most numBeams, 3/],
    [{ numBeams: 1.5 }, /numBeams: expected an integer/],
    [{ numBeams: 1, lengthPenalty: 2 }, /lengthPenalty: expected numBeams above 1 for this option/],
    [{ logprobs: 2 }, /logprobs: expected the default, because a beam search does not sample/],
  ])('%j is refused', async (wrong, message) => {
    await expect(engine.generate({ ...request, ...wrong })).rejects.toThrow(message);
  });

  test('a stream and a batch of beams are refused with the reason', async () => {
    const reason = /beams are final only at the end of the search.*Call generate\(\)/;
    expect(() => engine.stream(request)).toThrow(reason);
    await expect(engine.generateBatch([request])).rejects.toThrow(reason);
    expect(engine.stats().waiting).toBe(0);
  });

  test('a signal ends a search with its reason, destroy() with an error', async () => {
    const stop = new AbortController();
    const asked = engine.generate({ ...request, signal: stop.signal });
    const reason = new Error('enough');
    stop.abort(reason);
    await expect(asked).rejects.toBe(reason);
    const other = await initInference(folderOf('gpt2'), { dtype: 'fp32', device: 'cpu' });
    const late = other.generate(request);
    const seen = expect(late).rejects.toMatchObject({ code: 'DS_RELEASED' });
    await other.destroy();
    await seen;
  });

  test('destroy() ends a search on a model of the caller, and keeps its weights', async () => {
    const model = await tiny();
    const other = await initInference(model, { dtype: 'fp32', device: 'cpu' });
    const long = other.generate({ ...request, maxNewTokens: 60 });
    const seen = expect(long).rejects.toMatchObject({
      code: 'DS_RELEASED',
      op: 'InferenceEngine.generate',
      got: 'a destroyed engine',
    });
    await other.destroy();
    await seen;
    expect(await beamSearch(model, [3, 5], { numBeams: 2, maxNewTokens: 2 })).toHaveLength(1);
  });
});

describe('a tree of texts', () => {
  const rules = {
    numBeams: 2,
    lengthPenalty: 1,
    earlyStopping: false,
    maxNewTokens: 3,
    ends: new Set([9]),
  } as const;
  const candidate = (beam: number, token: number, total: number) => ({ beam, token, total });

  test('an end token below the likeliest beams ends no sequence', () => {
    const tree = new BeamTree(rules);
    expect(tree.breadth).toBe(4);
    const first = [candidate(0, 1, -1), candidate(0, 2, -2), candidate(0, 9, -3)];
    expect(tree.advance([...first, candidate(0, 3, -4)])).toEqual([0, 0]);
    expect(tree.running.map(({ tokens }) => tokens)).toEqual([[1], [2]]);
    const second = [candidate(1, 9, -2.5), candidate(0, 4, -3), candidate(0, 5, -3.5)];
    expect(tree.advance([...second, candidate(1, 6, -9)])).toEqual([0, 0]);
    expect(tree.bestBeams(1)).toEqual([{ tokens: [2, 9], score: -1.25 }]);
  });
});
