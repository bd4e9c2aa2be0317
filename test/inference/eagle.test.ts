// EAGLE-3 heads on the CPU: golden scores of PyTorch, and refused heads.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type inference, initInference, nn } from '../../lib/index.js';
import type { SamplingResult } from '../../lib/inference/sampling.js';
import { Sequence } from '../../lib/inference/sequence.js';
import type { DraftModel } from '../../lib/inference/speculation/draft-model.js';
import { openEagle } from '../../lib/inference/speculation/eagle-head.js';
import { OpenedEagle } from '../../lib/inference/speculation/open-eagle.js';
import { StepRunner } from '../../lib/inference/step-runner.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { scope, Tensor } from '../../lib/tensor/index.js';
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './eagle.cases.js';
import { formula, type HeadOptions, setWeights, WIDE, writeHead } from './eagle-folder.js';

testOnCpu('eagle', cases);

const file = join(packageRoot(), 'test/golden/eagle3.json');
const golden = JSON.parse(readFileSync(file, 'utf8')) as {
  layers: number[];
  targets: number[];
  tokens: number[];
  features: number[];
  cases: Record<string, { scores: number[]; drafted: number[]; chain: number[] }>;
};
const { targets, tokens } = golden;

let dir: string;
let model: nn.models.Llama;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-eagle-golden-'));
  model = new nn.models.Llama(WIDE);
  setWeights(model, formula);
});
afterAll(() => rmSync(dir, { recursive: true }));

const chunksOf = (values: readonly number[], size: number): number[][] =>
  Array.from({ length: values.length / size }, (_, i) => values.slice(i * size, (i + 1) * size));

function expectClose(found: readonly number[], expected: readonly number[]): void {
  expect(found).toHaveLength(expected.length);
  const off = found.map((value, i) => Math.abs(value - (expected[i] as number)));
  expect(Math.max(...off)).toBeLessThan(2e-5);
}

/** The scores of predicted tokens, and the first of the likeliest ones. */
function read(scores: Tensor): { rows: number[][]; best: number[] } {
  const all = chunksOf(scores.toArray(), WIDE.vocabSize);
  for (const row of all) {
    const others = row.filter((_, token) => !targets.includes(token));
    expect(others.every((value) => value === Number.NEGATIVE_INFINITY)).toBe(true);
  }
  const rows = all.map((row) => targets.map((token) => row[token] as number));
  return { rows, best: all.map((row) => row.indexOf(Math.max(...row))) };
}

/** Runs `body` with a model's runner and the head of a folder. */
async function withHead(
  head: HeadOptions,
  body: (parts: { runner: StepRunner; draft: DraftModel; eagle: OpenedEagle }) => Promise<void>,
): Promise<void> {
  await writeHead(join(dir, 'head'), head);
  const eagle = new OpenedEagle(await openEagle(join(dir, 'head'), model), 16);
  const sizes = { ...model.pagedShape(), blockSize: 16 };
  const room = { blocks: 4, tokens: 48, sequences: 2, reach: 64, records: false };
  const runner = new StepRunner(model, sizes, { ...room, hooks: eagle.hooksFor(4) });
  const draft = eagle.modelFor(room, model.vocabSize);
  try {
    await body({ runner, draft, eagle });
  } finally {
    runner.dispose();
    draft.dispose();
  }
}

const unsampledDraft = (into: Tensor): SamplingResult => ({
  tokens: into,
  logprobs: null,
  top: null,
  requestedTop: [null],
});

/** Computes `count` more tokens of a sequence with the model. */
function advance(runner: StepRunner, sequence: Sequence, count: number): void {
  const slices = [{ sequence, first: sequence.computed, count }];
  runner.launch(slices, (_scores, _rows, into) => unsampledDraft(into));
  sequence.computed += count;
  sequence.forget();
}

const FORMS = [
  ['plain', {}],
  ['norm_before_residual', { config: { norm_before_residual: true } }],
  ['plain', { rename: (name: string) => `model.${name.replace('midlayer', 'layers.0')}` }],
] as const;

test.each(FORMS)(
  'scores are those of PyTorch, from prompts in pieces and in a chain: %s %#',
  async (name, head) =>
    withHead({ ...head, targets }, async ({ runner, draft, eagle }) => {
      const expected = golden.cases[name] as (typeof golden.cases)['plain'];
      const rows = chunksOf(expected.scores, targets.length);
      const sequence = new Sequence(tokens.slice(0, 2), 40);
      sequence.blocks = [2, 0];
      const draftOf = async (
        count: number,
      ): Promise<{ rows: number[][]; proposals: readonly number[] }> => {
        const found: number[][] = [];
        sequence.proposals = Array(count).fill(0);
        await draft.fill([sequence], (scores, _rows, into) => {
          const { rows, best } = read(scores);
          found.push(...rows);
          scope(() => into.copy_(Tensor.from(best, { dtype: 'i32' })));
          return unsampledDraft(into);
        });
        const { proposals } = sequence;
        sequence.proposals = [];
        return { rows: found, proposals };
      };
      // The model computes all tokens but the last known one; the head drafts one token each time.
      for (const known of [2, 3, 6, 7]) {
        sequence.tokens.splice(0, sequence.tokens.length, ...tokens.slice(0, known));
        advance(runner, sequence, known - 1 - sequence.computed);
        const found = await draftOf(known === 6 ? 3 : 1);
        expectClose(found.rows[0] as number[], rows[known - 2] as number[]);
      }
      sequence.tokens.splice(0, sequence.tokens.length, ...tokens);
      advance(runner, sequence, tokens.length - 1 - sequence.computed);
      const last = await draftOf(5);
      expectClose(last.rows[0] as number[], rows.at(-1) as number[]);
      expect(last.proposals.slice(0, 4)).toEqual(expected.drafted);
      expectClose(last.rows.slice(1).flat(), expected.chain);
      expect(eagle.sizes.extraTokenBytes).toBe(64);
    }),
);

test('features are three hidden states of the model through fc', async () => {
  await withHead({ targets }, async ({ runner, eagle }) => {
    const sequence = new Sequence(tokens, 40);
    sequence.blocks = [3];
    advance(runner, sequence, 7);
    advance(runner, sequence, 3);
    const { pool } = eagle as unknown as { pool: { read(slots: Tensor): Tensor } };
    const slots = Array.from(tokens, (_, i) => 3 * 16 + i);
    const found = scope(() => pool.read(Tensor.from(slots, { dtype: 'i32' })).toArray());
    expectClose(found, golden.features);
    expect(golden.layers).toEqual([2, 4, 5]);
  });
});

async function refusal(config: object, head: HeadOptions = {}, of: nn.models.CausalLM = model) {
  await writeHead(join(dir, 'wrong'), { ...head, config });
  const speculative = { method: 'eagle3' as const, model: join(dir, 'wrong') };
  return initInference(of, { speculative, max_out_tokens: 32 }).then(
    () => null,
    (error: unknown) => error,
  );
}

test('heads for other models and other heads are refused with the reason', async () => {
  const rows: [object, HeadOptions, string, RegExp][] = [
    [{ vocab_size: 50 }, {}, 'DS_CONFIG', /a head with the vocabulary 48, got 50/],
    [{ target_hidden_size: 32 }, {}, 'DS_CONFIG', /hidden size of the model 16, got 32/],
    [{ num_hidden_layers: 2 }, {}, 'DS_CHECKPOINT', /num_hidden_layers/],
    [
      { eagle_config: { use_aux_hidden_state: false } },
      {},
      'DS_CHECKPOINT',
      /use_aux_hidden_state/,
    ] as never,
    [
      { eagle_config: { eagle_aux_hidden_state_layer_ids: [1, 1, 9] } },
      {},
      'DS_CHECKPOINT',
      /three different layers below 8/,
    ] as never,
    [{}, { rename: (name) => name.replace('fc.', 'fd.') }, 'DS_CHECKPOINT', /fc\.weight/],
    [{}, { targets: [1, 60] }, 'DS_CHECKPOINT', /tokens below 48, got token 60 at 1/],
  ];
  for (const [config, head, code, message] of rows) {
    const error = await refusal(config, head);
    expect(error).toMatchObject({ code, message: expect.stringMatching(message) });
  }
});

test('models without rotary positions and missing folders are refused', async () => {
  const gpt2 = new nn.models.GPT2({ vocabSize: 48, maxSeq: 64, layers: 1, heads: 2, channels: 16 });
  expect(await refusal({}, {}, gpt2)).toMatchObject({ code: 'DS_CONFIG' });
  const speculative = { method: 'eagle3' } as inference.InferenceConfig['speculative'];
  await expect(initInference(model, { speculative })).rejects.toMatchObject({
    message: expect.stringMatching(/a folder or a name for the method "eagle3"/),
  });
});
