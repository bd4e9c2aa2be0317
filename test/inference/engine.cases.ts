// Tests that the engine generates the texts of transformers, for any split of its steps.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import {
  type InferenceConfig,
  type InferenceEngine,
  initInference,
} from '../../lib/inference/index.js';
import { PagedCache, splitLists } from '../../lib/inference/paged-cache.js';
import { Sequence } from '../../lib/inference/sequence.js';
import { buildBatch } from '../../lib/inference/step-batch.js';
import { fromPretrained } from '../../lib/models/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { liveTensors, noGrad, scope, Tensor } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { type GreedyText, greedyTexts } from '../support/greedy-texts.js';

const golden = join(packageRoot(), 'test', 'golden');
const folderOf = (family: string): string => join(golden, 'transformers', 'models', family);

const families = greedyTexts();

const greedy = { temperature: 0, ignoreEos: true } as const;

/**
 * Runs `body` with an engine of a tiny model, and asserts that all its tensors are freed
 * afterwards.
 */
async function withEngine(
  family: string,
  config: InferenceConfig,
  body: (engine: InferenceEngine, texts: GreedyText[]) => Promise<void>,
): Promise<void> {
  const before = liveTensors();
  const engine = await initInference(folderOf(family), { dtype: 'fp32', ...config });
  try {
    await body(engine, families[family] as GreedyText[]);
    const { running, waiting, blocksUsed } = engine.stats();
    assert.deepEqual([running, waiting, blocksUsed], [0, 0, 0]);
  } finally {
    await engine.destroy();
  }
  // The garbage collector frees the model's rotary tables, a cosine and a sine each. Families with
  // angles of windows have two.
  assert.ok(liveTensors() - before <= 4, `${liveTensors() - before} tensors are left`);
}

const requestOf = ({ prompt, tokens }: GreedyText) => ({
  prompt,
  maxNewTokens: tokens.length,
  ...greedy,
});

/** Each prompt separately, then all together. */
async function continues(engine: InferenceEngine, texts: GreedyText[]): Promise<void> {
  for (const text of texts) {
    const [alone] = await engine.generate(requestOf(text));
    assert.deepEqual(alone?.tokens, text.tokens);
    assert.equal(alone?.finishReason, 'length');
  }
  await continueTogether(engine, texts);
}

/** All prompts twice, in one batch. */
async function continueTogether(engine: InferenceEngine, texts: GreedyText[]): Promise<void> {
  const together = await engine.generateBatch([...texts, ...texts].map(requestOf));
  [...texts, ...texts].forEach(({ tokens }, i) => {
    assert.deepEqual(together[i]?.[0]?.tokens, tokens);
  });
}

/**
 * In transformers, angles change when a text gets long; an engine for long texts always has the
 * long ones.
 */
const changing = ['phi3-longrope'];
const steady = Object.keys(families).filter((family) => !changing.includes(family));

const likeTransformers: Case[] = steady.map((family) => ({
  name: `engine: ${family} continues as transformers does`,
  run: (device) =>
    withEngine(family, { device: device.name, max_out_tokens: limitOf(family) }, continues),
}));

function limitOf(family: string): number {
  return family === 'gpt2' || family === 'ropes' ? 64 : 128;
}

/** Settings that must not change a token. */
const cuts: Record<string, InferenceConfig> = {
  'one token a step': { max_ragged_batch_size: 1 },
  'steps of 5 tokens': { max_ragged_batch_size: 5 },
  'steps of 16 tokens, blocks of 16': {
    max_ragged_batch_size: 16,
    kv_cache: { block_size: 16 },
  },
  'blocks of 37': { kv_cache: { block_size: 37 } },
  'blocks of 128': { kv_cache: { block_size: 128 } },
  'two sequences at a time': { max_ragged_sequence_count: 2 },
  'steps ahead of the host': { async_scheduling: true },
  'no step ahead': { async_scheduling: false },
  'one token a step, ahead': { max_ragged_batch_size: 1, async_scheduling: true },
  'steps of 5 tokens, ahead': {
    max_ragged_batch_size: 5,
    async_scheduling: true,
    kv_cache: { block_size: 16 },
  },
  'nothing shared': { kv_cache: { block_size: 16, prefix_caching: false } },
};

const alike: Case[] = [
  'llama',
  'mistral',
  'gpt2',
  'qwen2-moe',
  'gemma2',
  'cohere2',
  'qwen3-5',
  'deepseek-v3',
].flatMap((family) =>
  Object.entries(cuts).map(([name, config]) => ({
    name: `engine: ${family} continues alike with ${name}`,
    run: (device) =>
      withEngine(
        family,
        { ...config, device: device.name, max_out_tokens: limitOf(family) },
        // With the default settings, each family also runs one prompt at a time.
        family === 'llama' ? continues : continueTogether,
      ),
  })),
);

interface Habits {
  shares: boolean;
  ahead: boolean;
}

/** Blocks for little more than one text: the engine must preempt the newest ones. */
async function preempts(family: string, habits: Habits, device: Device): Promise<void> {
  const cache = { block_size: 16, blocks: 8, prefix_caching: habits.shares };
  const config = {
    device: device.name,
    kv_cache: cache,
    max_out_tokens: limitOf(family),
    async_scheduling: habits.ahead,
  };
  await withEngine(family, config, async (engine, texts) => {
    await continueTogether(engine, texts);
    assert.ok(engine.stats().preemptions > 0);
  });
}

/** A prompt that was read before, one that continues it, and several samples of one prompt. */
async function findsPrefixes(family: string, ahead: boolean, device: Device): Promise<void> {
  const config = {
    device: device.name,
    async_scheduling: ahead,
    kv_cache: { block_size: 16 },
    max_out_tokens: limitOf(family),
  };
  await withEngine(family, config, async (engine, texts) => {
    const text = texts.at(-1) as GreedyText;
    const ask = async (prompt: number[], cacheSalt: string, n = 1) => {
      const maxNewTokens = text.prompt.length + text.tokens.length - prompt.length;
      return engine.generate({ prompt, maxNewTokens, cacheSalt, n, ...greedy });
    };
    const fullValues = [...text.prompt, ...text.tokens];
    for (const [length, salt, cached] of [
      [37, 'a', 0] as const,
      [37, 'a', 32] as const,
      [37, 'b', 0] as const,
      [48, 'a', 32] as const,
      [55, 'a', 48] as const,
    ]) {
      const [one] = await ask(fullValues.slice(0, length), salt);
      assert.deepEqual(one?.tokens, fullValues.slice(length));
      assert.deepEqual([one?.cachedTokens, one?.promptTokens], [cached, length]);
    }
    const several = await ask(text.prompt, 'c', 3);
    assert.deepEqual(
      several.map(({ tokens, cachedTokens }) => [tokens, cachedTokens]),
      [0, 32, 32].map((cached) => [text.tokens, cached]),
    );
  });
}

/** The logits after every token, one by one and in chunks, equal the logits of a whole forward. */
async function equalsForward(family: string, device: Device): Promise<void> {
  const model = (await fromPretrained(folderOf(family))).to(device).eval();
  const text = (families[family] as GreedyText[]).at(-1) as GreedyText;
  const tokens = [...text.prompt, ...text.tokens];
  const sizes = { ...model.pagedShape(), blockSize: 16 };
  const cache = new PagedCache(sizes, 12, 1);
  const fullValues = noGrad(() =>
    scope(() => {
      const all = Tensor.from(Int32Array.from(tokens), { shape: [1, tokens.length], device });
      return model.call(all).contiguous().toArray();
    }),
  );
  const width = fullValues.length / tokens.length;
  const largest = Math.max(...fullValues.map(Math.abs));
  const sequence = new Sequence(tokens, tokens.length);
  sequence.blocks = [7, 2, 9, 0, 11, 4, 5, 3].slice(0, Math.ceil(tokens.length / 16));
  for (let first = 0, piece = 1; first < tokens.length; first += piece, piece = (piece % 3) + 1) {
    const count = Math.min(piece, tokens.length - first);
    const shown = new Sequence(tokens.slice(0, first + count), tokens.length);
    shown.blocks = sequence.blocks;
    shown.state = 0;
    const { batch } = buildBatch([{ sequence: shown, first, count }], { blockSize: 16 });
    const scores = noGrad(() =>
      scope(() => {
        const lists = splitLists(batch, Tensor.from(batch.numbers, { device }));
        const row = (list: Tensor): Tensor => list.reshape([1, count]);
        const positions = row(lists.positions);
        const places = { documents: null, positions, start: 0, reach: 128, caches: cache.layers };
        return cache
          .run(lists, () => model.logitsAfter(row(lists.tokens), places, lists.ends))
          .contiguous()
          .toArray();
      }),
    );
    const last = (first + count - 1) * width;
    scores.forEach((value, i) => {
      const error = Math.abs(value - (fullValues[last + i] as number));
      assert.ok(error <= 1e-5 * largest, `token ${first + count - 1}: off by ${error}`);
    });
  }
  cache.dispose();
  for (const parameter of model.parameters()) parameter.dispose();
}

export const cases: Case[] = [
  ...likeTransformers,
  ...alike,
  ...[
    'llama',
    'qwen2-window',
    'gpt2',
    'mixtral',
    'qwen3-next',
    'granite-4-h',
    'falcon-h1',
    'deepseek-v2',
  ].flatMap((family) =>
    [true, false].flatMap((shares) =>
      [true, false].map((ahead) => ({
        name: `engine: ${family} goes on after it gave way${shares ? '' : ', nothing shared'}${ahead ? ', ahead' : ''}`,
        run: (device: Device) => preempts(family, { shares, ahead }, device),
      })),
    ),
  ),
  ...['llama', 'mistral', 'gpt2'].flatMap((family) =>
    [true, false].map((ahead) => ({
      name: `engine: ${family} finds what was read before${ahead ? ', ahead' : ''}`,
      run: (device: Device) => findsPrefixes(family, ahead, device),
    })),
  ),
  ...Object.keys(families).map((family) => ({
    name: `engine: ${family} scores every token as a whole forward does`,
    run: (device: Device) => equalsForward(family, device),
  })),
];
