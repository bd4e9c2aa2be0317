// InferenceEngine.failure: a device that fails every call is permanent, the error of one step is
// not.
import { DsError } from '../../lib/errors.js';
import { type GenerateRequest, initInference } from '../../lib/inference/index.js';
import { LeaderGenerator } from '../../lib/inference/ranks/lead.js';
import { StepChannel } from '../../lib/inference/ranks/step-channel.js';
import type { StepLoop } from '../../lib/inference/step-loop.js';
import { fromConfig } from '../../lib/models/index.js';
import { cpu } from '../../lib/runtime/device.js';

const errorOf = (code: 'DS_CUDA' | 'DS_OUT_OF_MEMORY' | 'DS_COMM'): DsError =>
  new DsError({ code, op: 'a step', expected: 'a result', got: 'an error' });

const request = { prompt: [1, 2], maxNewTokens: 2, temperature: 0 };

async function tinyEngine() {
  const model = fromConfig({
    model_type: 'llama',
    vocab_size: 64,
    hidden_size: 16,
    intermediate_size: 16,
    num_hidden_layers: 1,
    num_attention_heads: 2,
    num_key_value_heads: 2,
    max_position_embeddings: 32,
    rms_norm_eps: 1e-6,
    rope_theta: 500,
    hidden_act: 'silu',
  });
  const engine = await initInference(model);
  const { runner } = engine as unknown as { runner: { begin: () => never } };
  return { engine, runner };
}

afterEach(() => jest.restoreAllMocks());

test.each([
  ['DS_CUDA', true, true],
  ['DS_CUDA', false, false],
  ['DS_OUT_OF_MEMORY', true, false],
] as const)(
  '%s, and a device that fails afterwards (%s): permanent %s',
  async (code, isDead, isPermanent) => {
    const { engine, runner } = await tinyEngine();
    expect(engine.failure).toBeNull();
    const dead = errorOf('DS_CUDA');
    const begin = jest.spyOn(runner, 'begin').mockImplementation(() => {
      throw errorOf(code);
    });
    const synchronize = jest.spyOn(cpu(), 'synchronize').mockImplementation(() => {
      if (isDead) throw dead;
    });
    await expect(engine.generate(request)).rejects.toMatchObject({ code });
    expect(engine.failure).toBe(isPermanent ? dead : null);
    begin.mockRestore();
    synchronize.mockRestore();
    expect((await engine.generate(request))[0]?.tokens).toHaveLength(2);
    await engine.destroy();
    expect(engine.failure).toBeNull();
  },
);

test('the failure of a job is that of its first rank', () => {
  const lost = errorOf('DS_COMM');
  let isLost = false;
  const check = (): void => {
    if (isLost) throw lost;
  };
  const line = new StepChannel({ check } as unknown as StepChannel['group']);
  const lead = new LeaderGenerator(line, 4000, () => ({ failure: null }) as unknown as StepLoop);
  expect(lead.failure).toBeNull();
  isLost = true;
  expect(lead.failure).toBe(lost);
  line.close();
});

test('errors of a batch name the request', async () => {
  const { engine } = await tinyEngine();
  const batch = (requests: unknown) =>
    engine.generateBatch(requests as GenerateRequest[]).then(null, ({ message }) => message);
  expect(await batch([request, { prompt: Array(40).fill(1) }])).toMatch(
    /^InferenceEngine requests\[1\] prompt: expected at most \d+ tokens/,
  );
  expect(await batch([{ prompt: [1], maxTokens: 3 }])).toMatch(
    /^InferenceEngine requests\[0\]: expected the options .* Did you mean "maxNewTokens"\?$/,
  );
  expect(await batch({ prompt: [1] })).toMatch(/generateBatch: expected a list of requests, got/);
  expect(engine.stats()).toMatchObject({ running: 0, waiting: 0, blocksUsed: 0 });
  await engine.destroy();
});
