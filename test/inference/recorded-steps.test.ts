// Tests recorded steps on the CPU: a replay runs the function of the first step of its form again,
// so its numbers of the host are old, as in a graph. Texts equal those of direct steps.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { cpu } from '../../lib/index.js';
import {
  type GenerateRequest,
  type Generation,
  type InferenceConfig,
  initInference,
} from '../../lib/inference/index.js';
import { Llama } from '../../lib/models/index.js';
import { addLora, saveAdapter } from '../../lib/peft/index.js';
import { Graph } from '../../lib/runtime/graph.js';
import { seed } from '../../lib/tensor/index.js';
import { lastTokenModel, perfectWeights, SIZES, writeHead } from './eagle-folder.js';

jest.mock('../../lib/runtime/graph.js', () => ({
  supportsGraphs: () => true,
  Graph: { record: jest.fn() },
}));

const root = mkdtempSync(join(tmpdir(), 'ds-recorded-'));
afterAll(() => rmSync(root, { recursive: true }));

const record = jest.mocked(Graph.record);
let launches = 0;

beforeEach(() => {
  launches = 0;
  record.mockReset();
  record.mockImplementation((_device, body, onRun) => {
    body();
    onRun();
    const launch = (): void => {
      launches++;
      body();
    };
    return { launch, dispose: () => {} } as unknown as Graph;
  });
});

interface Run {
  requests: readonly GenerateRequest[];
  config?: InferenceConfig;
  adapters?: Record<string, string>;
}

/** Tokens of requests, one after the other if `isAlone`. */
async function texts(
  model: Llama,
  { requests, config = {}, adapters }: Run,
  { isAlone = true, enable_cuda_graph }: { isAlone?: boolean; enable_cuda_graph: boolean },
): Promise<(readonly number[])[]> {
  const engine = await initInference(
    model,
    {
      device: cpu().name,
      dtype: 'fp32',
      enable_cuda_graph,
      kv_cache: { block_size: 16 },
      ...config,
    },
    adapters && { adapters },
  );
  const found: Generation[] = [];
  if (isAlone) for (const request of requests) found.push(...(await engine.generate(request)));
  else found.push(...(await engine.generateBatch(requests)).flat());
  await engine.destroy();
  return found.map(({ tokens }) => tokens);
}

const tiny = (number: number): Llama => {
  seed(number);
  return new Llama({
    vocabSize: 41,
    maxSeq: 128,
    layers: 2,
    heads: 4,
    channels: 32,
    kvHeads: 2,
    hidden: 48,
  });
};

/** Prompts of different lengths, which repeat themselves. */
const requests: GenerateRequest[] = Array.from({ length: 4 }, (_, n) => ({
  prompt: Array.from({ length: 9 + 5 * n }, (_, i) => (7 * (i % (3 + n)) + n) % 41),
  maxNewTokens: 30,
  ignoreEos: true,
  temperature: n % 2,
  seed: n,
}));

test('steps that verify proposals of one sequence', async () => {
  const speculative = { prompt_lookup_min: 1 };
  const expected = await texts(tiny(5), { requests }, { enable_cuda_graph: false });
  const run = { requests, config: { speculative } };
  expect(await texts(tiny(5), run, { enable_cuda_graph: true })).toEqual(expected);
  expect(record.mock.calls.length).toBeGreaterThan(2);
  expect(launches).toBeGreaterThan(30);
});

test('steps of a draft model', async () => {
  const dir = join(root, 'draft');
  await tiny(5).save(dir);
  const speculative = { model: dir, num_speculative_tokens: 3 };
  const expected = await texts(tiny(5), { requests }, { enable_cuda_graph: false });
  const run = { requests, config: { speculative } };
  expect(await texts(tiny(5), run, { enable_cuda_graph: true })).toEqual(expected);
  // The first step of each draft has several tokens.
  expect(launches).toBeGreaterThan(90);
});

test('steps of an EAGLE-3 head', async () => {
  const model = lastTokenModel();
  const dir = join(root, 'head');
  const valuesOf = perfectWeights(model, null);
  await writeHead(dir, { kvHeads: 4, valuesOf, config: { norm_before_residual: true } });
  const speculative = { method: 'eagle3' as const, model: dir, num_speculative_tokens: 4 };
  const localItems = requests.map((request) => ({
    ...request,
    prompt: (request.prompt as number[]).map((token) => token % SIZES.vocabSize),
  }));
  const direct = await texts(model, { requests: localItems }, { enable_cuda_graph: false });
  const run = { requests: localItems, config: { speculative } };
  expect(await texts(model, run, { enable_cuda_graph: true })).toEqual(direct);
  // The head's steps are recorded too.
  expect(launches).toBeGreaterThan(60);
});

test('steps with several adapters, rows without one, and padding rows', async () => {
  const adapters: Record<string, string> = {};
  for (const [i, r] of [3, 16].entries()) {
    const model = tiny(2 + i);
    addLora(model, { r, loraAlpha: 8 * r, targetModules: 'all-linear', initLoraWeights: false });
    adapters[`a${i}`] = join(root, `a${i}`);
    await saveAdapter(model, join(root, `a${i}`));
  }
  const names = [...Object.keys(adapters), undefined];
  const localItems = Array.from({ length: 11 }, (_, i) => ({
    prompt: [i, 3, 2 * i, 1],
    maxNewTokens: 4 + i,
    ignoreEos: true,
    temperature: 0,
    ...(names[i % 3] !== undefined && { adapter: names[i % 3] as string }),
  }));
  const run = { requests: localItems, adapters };
  const direct = await texts(tiny(1), run, { enable_cuda_graph: false });
  const recorded = { isAlone: false, enable_cuda_graph: true };
  expect(await texts(tiny(1), run, recorded)).toEqual(direct);
  expect(launches).toBeGreaterThan(5);
});
