// rolloutsOf(): generation with the weights of a training engine, and its cache between phases.
import { initInference, initialize, rolloutsOf, Tensor } from '../../lib/index.js';
import { refusal } from '../support/refusal.js';
import { policyModel } from './grpo-tiny.js';

const prompt = [1, 5, 9, 13];
const greedy = { prompt, maxNewTokens: 8, temperature: 0, ignoreEos: true };

test('completions follow the weights of the engine', async () => {
  const config = {
    train_batch_size: 1,
    optimizer: { type: 'AdamW' as const, params: { lr: 0.05 } },
  };
  const { engine } = await initialize({ model: policyModel(), config, device: 'cpu' });
  const rollouts = rolloutsOf(engine);
  const tokensOf = async (): Promise<readonly number[]> =>
    (await rollouts.generate([greedy]))[0]?.[0]?.tokens ?? [];
  const before = await tokensOf();
  expect(await tokensOf()).toEqual(before);
  const [ids, targets] = [prompt, [7, 7, 7, 7]].map((row) =>
    Tensor.from(Int32Array.from(row), { shape: [1, 4] }),
  );
  for (let i = 0; i < 5; ++i) {
    engine.backward(engine.forward<Tensor>(ids, targets));
    engine.step();
  }
  expect(engine.module.training).toBe(true);
  const after = await tokensOf();
  expect(after).not.toEqual(before);
  expect(after[0]).toBe(7);
  expect(engine.module.training).toBe(true);
  const both = rollouts.generate([greedy]);
  const error = await refusal(() => rollouts.generate([greedy]));
  expect(error.message).toMatch(/one call at a time/);
  await both;
  await rollouts.destroy();
  await engine.destroy();
});

test('a sleeping engine has no cached prefixes, and wakes by a request', async () => {
  const engine = await initInference(policyModel(), { device: 'cpu', max_out_tokens: 64 });
  const long = { ...greedy, prompt: Array.from({ length: 40 }, (_, i) => i + 1) };
  const [first] = await engine.generate(long);
  const [cached] = await engine.generate(long);
  engine.sleep();
  engine.sleep();
  const [later] = await engine.generate(long);
  expect([cached?.tokens, later?.tokens]).toEqual([first?.tokens, first?.tokens]);
  expect(later?.cachedTokens).toBe(0);
  const busy = engine.generate(long);
  expect(() => engine.sleep()).toThrow(/sleep: expected no request in progress/);
  await busy;
  await engine.destroy();
});
