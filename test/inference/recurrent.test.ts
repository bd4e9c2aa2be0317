// Limits of inference with models that have recurrent layers.
import { join } from 'node:path';
import { initInference } from '../../lib/index.js';
import { beamSearch } from '../../lib/inference/beams.js';
import { fromPretrained } from '../../lib/models/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';

const folder = join(packageRoot(), 'test/golden/transformers/models/qwen3-5');

test('a prefix is computed again, because blocks contain no recurrent states', async () => {
  const engine = await initInference(folder, { dtype: 'fp32', kv_cache: { block_size: 16 } });
  const prompt = Array.from({ length: 33 }, (_, i) => 3 + (i % 30));
  const request = { prompt, maxNewTokens: 2, temperature: 0 };
  const [[first], [second]] = [await engine.generate(request), await engine.generate(request)];
  expect([first?.cachedTokens, second?.cachedTokens]).toEqual([0, 0]);
  expect(second?.tokens).toEqual(first?.tokens);
  await engine.destroy();
});

test('the engine warns that prefix caching has no effect, unless it is off', async () => {
  const warned = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
  const texts = async (kv_cache: object): Promise<string[]> => {
    warned.mockClear();
    const engine = await initInference(folder, { dtype: 'fp32', kv_cache });
    await engine.destroy();
    return warned.mock.calls.map(([text]) => String(text));
  };
  try {
    expect(await texts({})).toEqual([expect.stringMatching(/prefix_caching has no effect/)]);
    expect(await texts({ prefix_caching: false })).toEqual([]);
  } finally {
    warned.mockRestore();
  }
});

test('a search for beams is refused by the name of the model', async () => {
  const model = await fromPretrained(folder);
  const search = beamSearch(model, [5, 6], { numBeams: 2, maxNewTokens: 2 });
  await expect(search).rejects.toThrow(
    /beamSearch model: expected a model without recurrent layers.*Qwen35/,
  );
});

test('speculation is refused', async () => {
  const speculative = { method: 'ngram' as const, num_speculative_tokens: 2 };
  await expect(initInference(folder, { dtype: 'fp32', speculative })).rejects.toThrow(
    /speculative: expected no value for a model with recurrent layers/,
  );
});

test('a draft model with recurrent layers is refused', async () => {
  const speculative = { method: 'draft_model' as const, model: folder, num_speculative_tokens: 2 };
  const model = folder.replace('qwen3-5', 'olmo');
  await expect(initInference(model, { dtype: 'fp32', speculative })).rejects.toThrow(
    /speculative.model: expected a model without recurrent layers, got Qwen35/,
  );
});

test('the states of sequences leave less memory for blocks', async () => {
  const model = await fromPretrained(folder);
  expect(model.recurrentSizes).toEqual({
    layers: [true, false],
    channels: 2 * 2 * 6 + 4 * 5,
    taps: 4,
    heads: 4,
    keyDim: 6,
    valueDim: 5,
  });
});
