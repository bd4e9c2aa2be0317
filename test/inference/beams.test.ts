// Runs the cases of beam search on the CPU, and what it refuses.
import { BeamTree } from '../../lib/inference/beam-tree.js';
import { type BeamOptions, beamSearch } from '../../lib/inference/beams.js';
import { type CausalLM, fromPretrained } from '../../lib/models/index.js';
import { liveTensors } from '../../lib/tensor/index.js';
import { testOnCpu } from '../support/jest-cases.js';
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

test('one beam is the likeliest token each time', async () => {
  const model = await tiny();
  const [beam] = await beamSearch(model, [3, 5], { numBeams: 1, maxNewTokens: 9 });
  const greedy = model.generate([3, 5], { maxNewTokens: 9, temperature: 0 });
  expect([3, 5, ...(beam?.tokens ?? [])]).toEqual(greedy);
});

test.each<[object, RegExp]>([
  [{ numBeams: 0 }, /numBeams: expected an integer of at least 1/],
  [{ n: 3 }, /n: expected at most numBeams, 2, got 3/],
  [{ earlyStopping: 'always' }, /earlyStopping: expected true, false or "never"/],
  [{ lengthPenalty: Number.NaN }, /lengthPenalty: expected a finite number/],
  [{ temperature: 0.7 }, /temperature: expected no such option with beams, got 0.7/],
  [{ seed: 1 }, /seed: expected no such option with beams/],
  [{ topP: 0.9 }, /topP: expected no such option with beams/],
  [{ stopTokens: [-1] }, /tokens from 0 to/],
  [{ maxNewTokens: 100_000 }, /prompt: expected a token or more, and at most \d+ with the new/],
  [{ num_beam: 2 }, /Did you mean "numBeams"/],
])('%j is refused', async (wrong, message) => {
  const model = await tiny();
  const options = { numBeams: 2, maxNewTokens: 3, ...wrong } as BeamOptions;
  await expect(beamSearch(model, [1], options)).rejects.toThrow(message);
});

test('a signal ends a search', async () => {
  const model = await tiny();
  const stop = new AbortController();
  const before = liveTensors();
  const options = { numBeams: 2, maxNewTokens: 50, signal: stop.signal };
  const search = beamSearch(model, [1], options);
  stop.abort(new Error('enough'));
  await expect(search).rejects.toThrow('enough');
  expect(liveTensors()).toBe(before);
});

describe('a tree of texts', () => {
  const rules = {
    ...{ numBeams: 2, lengthPenalty: 1, earlyStopping: false, maxNewTokens: 3 },
    ends: new Set([9]),
  } as const;
  const candidate = (beam: number, token: number, total: number) => ({ beam, token, total });

  test('an end below the likeliest beams is no text', () => {
    const tree = new BeamTree(rules);
    expect(tree.breadth).toBe(4);
    const first = [candidate(0, 1, -1), candidate(0, 2, -2), candidate(0, 9, -3)];
    expect(tree.advance([...first, candidate(0, 3, -4)])).toEqual([0, 0]);
    expect(tree.running.map(({ tokens }) => tokens)).toEqual([[1], [2]]);
    const second = [candidate(1, 9, -2.5), candidate(0, 4, -3), candidate(0, 5, -3.5)];
    expect(tree.advance([...second, candidate(1, 6, -9)])).toEqual([0, 0]);
    expect(tree.found(1)).toEqual([{ tokens: [2, 9], score: -1.25 }]);
  });
});
