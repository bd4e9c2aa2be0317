// Turns in an engine: order of the answers, and answers that do not depend on it.
import { type inference, initInference, nn, seed } from '../../lib/index.js';

const sizes = { vocabSize: 61, maxSeq: 256, layers: 1, heads: 2, channels: 16 };
const ask = { prompt: [3, 1, 4], ignoreEos: true, seed: 5 };

let model: nn.models.GPT2;
beforeAll(() => {
  seed(3);
  model = new nn.models.GPT2(sizes);
});

async function withEngine(
  config: inference.InferenceConfig,
  body: (engine: inference.InferenceEngine) => Promise<void>,
): Promise<void> {
  const engine = await initInference(model, config);
  try {
    await body(engine);
    expect(engine.stats()).toMatchObject({ running: 0, waiting: 0, blocksUsed: 0 });
  } finally {
    await engine.destroy();
  }
}

const one = { max_ragged_sequence_count: 1, max_out_tokens: 256 };

test.each([
  ['fair', ['b', 'd', 'c', 'a']],
  ['priority', ['b', 'c', 'a', 'd']],
  ['fcfs', ['a', 'b', 'c', 'd']],
] as const)('requests end in the order of the policy: %s', (policy, expected) =>
  withEngine({ ...one, scheduling: { policy } }, async (engine) => {
    const ends: string[] = [];
    const run = async (name: string, client: string, priority?: number) => {
      await engine.generate({ ...ask, maxNewTokens: 4, client, priority });
      ends.push(name);
    };
    await Promise.all([run('a', 'x', 1), run('b', 'x', -1), run('c', 'x'), run('d', 'y', 8)]);
    expect(ends).toEqual(expected);
  }),
);

test.each([
  ['plain', {}],
  ['penalties', { frequencyPenalty: 0.3, repetitionPenalty: 1.2, presencePenalty: 0.1 }],
  ['other rules', { minTokens: 180, stopTokens: [7], badWords: [[3, 4]], logitBias: { 5: 2 } }],
])('a preempted request gets the same tokens, and the other client a turn: %s', (_, rules) =>
  withEngine(one, async (engine) => {
    const long = { ...ask, ...rules, maxNewTokens: 200 };
    const [alone] = await engine.generate(long);
    const ends: string[] = [];
    const noteTurn = (name: string) => (result: readonly inference.Generation[]) => {
      ends.push(name);
      return result[0]?.tokens;
    };
    const many = [0, 1].map(() =>
      engine.generate({ ...long, client: 'many' }).then(noteTurn('many')),
    );
    const single = engine
      .generate({ ...ask, maxNewTokens: 5, client: 'one' })
      .then(noteTurn('one'));
    expect(await Promise.all(many)).toEqual([alone?.tokens, alone?.tokens]);
    expect((await single)?.length).toBe(5);
    expect(ends).toEqual(['one', 'many', 'many']);
    expect(engine.stats().preemptions).toBeGreaterThan(0);
  }),
);

test('another priority or client is refused', () =>
  withEngine(one, async (engine) => {
    for (const wrong of [{ priority: 0.5 }, { priority: '1' }, { client: 3 }]) {
      const request = { ...ask, ...wrong } as unknown as inference.GenerateRequest;
      await expect(engine.generate(request)).rejects.toMatchObject({ code: 'DS_ARGUMENT' });
    }
  }));
