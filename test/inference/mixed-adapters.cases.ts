// Tests that one batch serves several adapters: each row as the merged model, others untouched.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type InferenceEngine, initInference } from '../../lib/inference/index.js';
import { fromPretrained } from '../../lib/models/index.js';
import {
  addLora,
  type LoraOptions,
  loadAdapter,
  merge,
  saveAdapter,
} from '../../lib/peft/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { seed } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { type GreedyText, greedyTexts } from '../support/greedy-texts.js';

const golden = join(packageRoot(), 'test', 'golden');
export const folderOf = (family: string): string => join(golden, 'transformers', 'models', family);

const families = greedyTexts();

/** Adapters of different ranks and layers; B is not zero. */
export const ADAPTERS: Readonly<Record<string, LoraOptions>> = {
  all: { r: 5, loraAlpha: 15, targetModules: 'all-linear' },
  wide: { r: 17, loraAlpha: 40, useRslora: true, targetModules: 'all-linear' },
  first: { r: 2, loraAlpha: 24, targetModules: 'all-linear', layersToTransform: [0] },
};

/** Saves an adapter of a family, and returns its folder. */
export async function saveNew(
  family: string,
  dir: string,
  options: LoraOptions,
  number: number,
): Promise<string> {
  seed(number);
  const model = await fromPretrained(folderOf(family), { dtype: 'f32' });
  addLora(model, { ...options, initLoraWeights: false });
  await saveAdapter(model, dir);
  return dir;
}

/** Runs `body` with folders of ADAPTERS for a family. */
export async function withFolders(
  family: string,
  body: (folders: Record<string, string>) => Promise<void>,
): Promise<void> {
  const root = mkdtempSync(join(tmpdir(), 'ds-adapters-'));
  try {
    const folders: Record<string, string> = {};
    for (const [i, [name, options]] of Object.entries(ADAPTERS).entries()) {
      folders[name] = await saveNew(family, join(root, name), options, i + 1);
    }
    await body(folders);
  } finally {
    rmSync(root, { recursive: true, force: true });
  }
}

const greedy = { temperature: 0, ignoreEos: true, maxNewTokens: 12 } as const;

const requestOf = ({ prompt }: GreedyText, adapter?: string) => ({
  ...greedy,
  prompt,
  ...(adapter !== undefined && { adapter }),
});

const tokensOf = async (engine: InferenceEngine, text: GreedyText, adapter?: string) =>
  (await engine.generate(requestOf(text, adapter)))[0]!.tokens;

/** The tokens of a model with a merged adapter. */
async function mergeAdapters(
  family: string,
  folder: string,
  texts: readonly GreedyText[],
  device: Device,
) {
  const model = await fromPretrained(folderOf(family), { dtype: 'f32' });
  await loadAdapter(model, folder);
  merge(model);
  const engine = await initInference(model, { dtype: 'fp32', device: device.name });
  try {
    return await Promise.all(texts.map((text) => tokensOf(engine, text)));
  } finally {
    await engine.destroy();
  }
}

async function serves(family: string, device: Device): Promise<void> {
  const texts = families[family]!.slice(0, 3);
  await withFolders(family, async (folders) => {
    const expected = new Map<string | undefined, (readonly number[])[]>();
    expected.set(
      undefined,
      texts.map(({ tokens }) => tokens.slice(0, greedy.maxNewTokens)),
    );
    for (const [name, folder] of Object.entries(folders)) {
      expected.set(name, await mergeAdapters(family, folder, texts, device));
    }
    const config = { dtype: 'fp32', device: device.name } as const;
    const engine = await initInference(folderOf(family), config, { adapters: folders });
    try {
      assert.deepEqual(engine.adapters, Object.keys(folders));
      const jobs = [...expected].flatMap(([name, all]) =>
        texts.map((text, i) => ({ name, text, tokens: all[i]! })),
      );
      const together = await engine.generateBatch(
        jobs.map(({ name, text }) => requestOf(text, name)),
      );
      for (const [i, { name, tokens }] of jobs.entries()) {
        assert.deepEqual(together[i]![0]!.tokens, tokens, `${name} in a mixed batch`);
      }
      for (const { name, text, tokens } of jobs.slice(0, 7)) {
        assert.deepEqual(await tokensOf(engine, text, name), tokens, `${name} alone`);
      }
      const differ = jobs.filter(
        ({ tokens }, i) => tokens.join() !== jobs[i % texts.length]!.tokens.join(),
      );
      assert.ok(differ.length > texts.length, 'adapters change the tokens');
    } finally {
      await engine.destroy();
    }
  });
}

/** Separate, packed and quantized projections, a fused GELU, norms of heads, and experts. */
const FAMILIES = [
  'llama',
  'gpt2',
  'glm',
  'qwen2',
  'qwen3',
  'gemma2',
  'mixtral',
  'falcon',
  'deepseek-v2',
];

export const cases: readonly Case[] = FAMILIES.filter((family) => families[family]).map(
  (family) => ({
    name: `${family}: a batch with several adapters equals merged models`,
    run: (device) => serves(family, device),
  }),
);
