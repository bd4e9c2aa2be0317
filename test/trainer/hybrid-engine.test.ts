// The section hybrid_engine: initialize() returns an engine that trains and generates.
import { initialize, nn, resolveConfig, rolloutsOf, Tensor } from '../../lib/index.js';
import { HybridEngine } from '../../lib/trainer/rollouts/hybrid-engine.js';
import { errorOf } from '../engine/offload-scenario.js';
import { quiet } from '../support/quiet.js';
import { policyModel, tokenizer } from './grpo-tiny.js';

const config = (hybrid: object = {}, more: object = {}) => ({
  train_micro_batch_size_per_gpu: 2,
  optimizer: { type: 'AdamW' as const, params: { lr: 0.05 } },
  ...more,
  hybrid_engine: { enabled: true as const, ...hybrid },
});
const request = { prompt: [1, 5, 9, 13], maxNewTokens: 6, temperature: 0, ignoreEos: true };

function batch(): [Tensor, Tensor] {
  const of = (token: number): Tensor =>
    Tensor.from(new Int32Array(8).fill(token), { shape: [2, 4] });
  return [of(5), of(7)];
}

test.each([false, true])(
  'generates between updates, release_inference_cache %s',
  async (release) => {
    const model = policyModel();
    const options = config({ release_inference_cache: release });
    const { engine } = await initialize({ model, config: options, device: 'cpu' });
    expect(engine).toBeInstanceOf(HybridEngine);
    const tokensOf = async (): Promise<readonly number[] | undefined> =>
      (await engine.generate([request]))[0]?.[0]?.tokens;
    const before = await tokensOf();
    expect(before?.length).toBe(6);
    const kept = engine.device.memory.inUse;
    const [ids, targets] = batch();
    for (let i = 0; i < 4; ++i) {
      engine.backward(engine.forward<Tensor>(ids, targets));
      engine.step();
    }
    expect(model.training).toBe(true);
    const after = await tokensOf();
    const fresh = rolloutsOf(engine);
    expect((await fresh.generate([request]))[0]?.[0]?.tokens).toEqual(after);
    await fresh.destroy();
    expect(after).not.toEqual(before);
    engine.eval();
    await engine.generate([request]);
    expect(model.training).toBe(false);
    expect(kept).toBeGreaterThan(0);
    engine.destroy();
    expect(await errorOf(() => engine.generate([request]))).toMatch(/^DS_AUTOGRAD engine.generate/);
  },
);

test('a kept cache needs more memory between generations than a released one', async () => {
  const uses: number[] = [];
  for (const release of [false, true]) {
    const options = config({ release_inference_cache: release, max_out_tokens: 64 });
    const { engine } = await initialize({ model: policyModel(), config: options, device: 'cpu' });
    // Weights of earlier engines, freed during the generation, would count as its release.
    await quiet(() => engine.device.memory.inUse);
    const before = engine.device.memory.inUse;
    await engine.generate([request]);
    uses.push(engine.device.memory.inUse - before);
    engine.destroy();
  }
  expect(uses[0]).toBeGreaterThan(uses[1] as number);
});

test('texts need a tokenizer, and max_out_tokens limits prompt and completion', async () => {
  const options = config({ max_out_tokens: 8 });
  const { engine } = await initialize({ model: policyModel(), config: options, device: 'cpu' });
  engine.tokenizer = tokenizer;
  const [[one] = []] = await engine.generate([{ prompt: 'The', maxNewTokens: 2, temperature: 0 }]);
  expect(typeof one?.text).toBe('string');
  const long = { ...request, prompt: Array.from({ length: 9 }, (_, i) => i + 1) };
  expect(await errorOf(() => engine.generate([long]))).toMatch(/^DS_LIMIT/);
  engine.destroy();
});

test('each key has an effect, or the engine refuses it', async () => {
  const model = new nn.Linear(2, 2);
  expect(await errorOf(() => initialize({ model, config: config(), device: 'cpu' }))).toBe(
    'DS_CONFIG hybrid_engine.enabled: expected a CausalLM, which generates text, got a Linear.',
  );
  const resolve = (hybrid: object, more: object = {}) =>
    resolveConfig(config(hybrid, more) as never, { worldSize: 2 });
  expect(await errorOf(() => resolve({ inference_tp_size: 2 }))).toMatch(
    /^DS_CONFIG .*hybrid_engine.inference_tp_size: expected 1, got 2\. Set tensor_parallel.autotp_size/,
  );
  const cut = { tensor_parallel: { autotp_size: 2 } };
  expect(resolve({ inference_tp_size: 2 }, cut).hybrid_engine.inference_tp_size).toBe(2);
  const { notices } = resolve({
    pin_parameters: false,
    tp_gather_partition_size: 4,
    enable_cuda_graph: true,
  });
  expect(notices.join('\n')).toMatch(
    /hybrid_engine.pin_parameters has no effect: weights of stage 3 are gathered once/,
  );
  expect(notices.join('\n')).toMatch(/hybrid_engine.tp_gather_partition_size has no effect/);
  expect(notices.join('\n')).not.toMatch(/enable_cuda_graph/);
  expect(resolveConfig({ train_batch_size: 2 }, { worldSize: 2 }).hybrid_engine.enabled).toBe(
    false,
  );
});
