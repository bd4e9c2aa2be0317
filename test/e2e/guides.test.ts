// Runs the main programs of the guides unchanged, as processes in a folder with the data that they
// name.
import { execFileSync } from 'node:child_process';
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import {
  type configuration,
  consolidate,
  type DsConfig,
  initDistributed,
  initialize,
  nn,
  peft,
  Tensor,
} from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { readPage, snippetsOf } from '../docs/snippets.js';

const root = packageRoot();
let folder: string;

// Inside the package, so that its name resolves to it.
beforeAll(() => {
  mkdirSync(join(root, 'build'), { recursive: true });
  folder = mkdtempSync(join(root, 'build/guides-'));
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Runs the only JavaScript block of a page with Node, or as the script of `ds`. */
function runPage(page: string, ...before: string[]): string {
  const programs = programsOf(page);
  expect(programs).toHaveLength(1);
  return runProgram(programs[0] ?? '', before);
}

const programsOf = (page: string): string[] =>
  snippetsOf(page, readPage(page), ['js']).map(({ code }) => code);

function runProgram(code: string, before: string[], after: string[] = []): string {
  const script = join(folder, 'program.mjs');
  writeFileSync(script, code);
  const options = { encoding: 'utf8', cwd: folder, timeout: 600_000 } as const;
  return execFileSync(process.execPath, [...before, script, ...after], options);
}

test('the training loop learns, resumes, and runs on two ranks', () => {
  const out = runPage('docs/training-loop.md');
  const losses = Array.from(out.matchAll(/epoch \d: (\d\.\d+)/g), ([, loss]) => Number(loss));
  expect(losses).toHaveLength(5);
  expect(losses.at(-1)).toBeLessThan((losses[0] as number) / 2);
  expect(readFileSync(join(folder, 'checkpoints/best/latest'), 'utf8')).toMatch(/^best/);
  expect(runPage('docs/training-loop.md')).toBe(''); // All epochs are done.
  rmSync(join(folder, 'checkpoints'), { recursive: true });
  const ranks = [join(root, 'dist/launch/cli.js'), '--num_procs', '2'];
  expect(runPage('docs/training-loop.md', ...ranks)).toMatch(/^\[0\] epoch 5: /m);
});

test('a curriculum of lengths trains with the lengths of the page', () => {
  const page = 'docs/data-sampling.md';
  const [program = ''] = programsOf(page);
  const out = runProgram(program, []);
  const steps = Array.from(
    out.matchAll(/step (\d+): (\d+) tokens, loss (\d\.\d+)/g),
    ([, ...numbers]) => numbers.map(Number) as [number, number, number],
  );
  const lengths = steps.map(([step, tokens]) => `step ${step}: ${tokens} tokens`);
  const documented = readPage(page).matchAll(/`(step \d+: \d+ tokens)`/g);
  expect(lengths.slice(0, 4)).toEqual(Array.from(documented, ([, line]) => line));
  expect(lengths.slice(4)).toEqual(['step 25: 64 tokens', 'step 30: 64 tokens']);
  expect(steps.at(-1)?.[2]).toBeLessThan((steps[0]?.[2] as number) - 0.5);
});

test('layers are dropped as often as on the page, and the model learns', () => {
  const out = runPage('docs/data-efficiency.md');
  const steps = Array.from(out.matchAll(/(step \d+: \d\.\d+), loss (\d\.\d+)/g));
  const documented = readPage('docs/data-efficiency.md').matchAll(/`(step \d+: \d\.\d+)`/g);
  expect(steps.map(([, line]) => line)).toEqual(Array.from(documented, ([, line]) => line));
  const losses = steps.map(([, , loss]) => Number(loss));
  expect(losses.at(-1)).toBeLessThan((losses[0] as number) - 0.5);
});

test('easy samples come first, in the steps of the page', () => {
  const page = 'docs/data-sampling.md';
  const programs = programsOf(page);
  expect(programs).toHaveLength(2);
  const lines = runProgram(programs[1] ?? '', [])
    .trimEnd()
    .split('\n');
  const documented = readPage(page).matchAll(/`(step \d+: \d+ words)`/g);
  expect(lines.slice(0, -1)).toEqual(Array.from(documented, ([, line]) => line));
  // A uniform guess over all words has a loss of 4.16.
  expect(Number(/^loss (\d\.\d+)$/.exec(lines.at(-1) as string)?.[1])).toBeLessThan(3.4);
});

test('a compressed model learns, and becomes as small as on the page', () => {
  const out = runPage('docs/compression.md');
  const losses = Array.from(out.matchAll(/loss (\d\.\d+)/g), ([, loss]) => Number(loss));
  expect(losses).toHaveLength(3);
  expect(losses.at(-1)).toBeLessThan((losses[0] as number) / 2);
  const [, documented] = /`(\d+ parameters, then \d+)`/.exec(readPage('docs/compression.md')) ?? [];
  expect(out.trimEnd().split('\n').at(-1)).toBe(documented);
});

test('a pipeline of two stages learns', () => {
  const ranks = [join(root, 'dist/launch/cli.js'), '--num_procs', '2'];
  const out = runPage('docs/pipeline.md', ...ranks);
  const losses = Array.from(out.matchAll(/step \d+: (\d\.\d+)/g), ([, loss]) => Number(loss));
  expect(losses).toHaveLength(5);
  expect(losses.at(-1)).toBeLessThan((losses[0] as number) / 2);
});

test('state on a disk learns, saves, and leaves nothing in its folder', () => {
  const out = runPage('docs/nvme.md');
  const losses = Array.from(out.matchAll(/step \d+: loss (\d\.\d+)/g), ([, loss]) => Number(loss));
  expect(losses).toHaveLength(5);
  expect(losses.at(-1)).toBeLessThan((losses[0] as number) - 0.25);
  expect(readdirSync(join(folder, 'local_nvme'))).toEqual([]);
  expect(readdirSync(join(folder, 'checkpoints'))).toContain('global_step5');
  rmSync(join(folder, 'checkpoints'), { recursive: true });
});

test('a configuration splits a model over the ranks of ds, which print their mesh first', () => {
  const [program] = snippetsOf('docs/tensor-parallel.md', readPage('docs/tensor-parallel.md'), [
    'json',
  ]);
  const section = JSON.parse(program?.code ?? '').tensor_parallel;
  writeFileSync(
    join(folder, 'configured.mjs'),
    `import { comm, initialize, nn } from '@ds/native';
    const model = new nn.models.GPT2({ vocabSize: 97, maxSeq: 8, layers: 1, heads: 2, channels: 8 });
    const optimizer = { type: 'AdamW', params: {} };
    const config = { train_batch_size: 4, optimizer, tensor_parallel: ${JSON.stringify(section)} };
    const { engine } = await initialize({ model, config, device: 'cpu' });
    const { shape } = model.transformer.h[0].mlp.c_fc.weight;
    if (engine.globalRank === 0) console.log(engine.trainMicroBatchSizePerGpu(), engine.dpWorldSize, shape.join());
    engine.destroy();
    await comm.distributed().destroy();`,
  );
  const ranks = [join(root, 'dist/launch/cli.js'), '--num_procs', '4'];
  const options = { encoding: 'utf8', cwd: folder, timeout: 600_000 } as const;
  const words = [...ranks, join(folder, 'configured.mjs')];
  const lines = execFileSync(process.execPath, words, options).trim().split('\n');
  expect(lines).toEqual(['[0] mesh: 4 ranks as dp 2 x tp 2', '[0] 2 2 16,8']);
});

test("the Trainer's program learns, writes its folders, and ends at once in a second run", async () => {
  const out = runPage('docs/trainer.md');
  const losses = Array.from(out.matchAll(/step \d+: (\d\.\d+)/g), ([, loss]) => Number(loss));
  expect(losses.length).toBeGreaterThan(3);
  expect(losses.at(-1)).toBeLessThan((losses[0] as number) - 0.5);
  await nn.models.fromPretrained(join(folder, 'numbers'));
  expect(runPage('docs/trainer.md')).toBe('');
});

test('fine-tuning reads a folder of Hugging Face, trains its upper half and gives one back', async () => {
  await writeFolder(join(folder, 'gpt2'));
  mkdirSync(join(folder, 'my-text'), { recursive: true });
  writeFileSync(join(folder, 'my-text/a.txt'), 'The quick brown fox. '.repeat(80));
  expect(runPage('docs/fine-tuning.md').trim()).toMatch(/tuned\/global_step\d+$/);
  const { format } = await consolidate(join(folder, 'tuned'), join(folder, 'tuned-hf'));
  expect(format).toBe('hf');
  const [before, after] = await Promise.all(
    ['gpt2', 'tuned-hf'].map((name) => nn.models.GPT2.fromPretrained(join(folder, name))),
  );
  const changed = new Set<string>();
  for (const [name, parameter] of (before as nn.Module).namedParameters()) {
    const other = (after as nn.Module).stateDict()[name] as Tensor;
    if (`${other.toArray()}` !== `${parameter.to('bf16').to('f32').toArray()}`) changed.add(name);
  }
  expect([...changed].filter((name) => /wte|wpe|\.h\.0\./.test(name))).toEqual([]);
  expect(changed).toContain('transformer.h.1.mlp.c_fc.weight');
});

test('adapters are trained over 4-bit weights, and saved for PEFT', async () => {
  rmSync(join(folder, 'gpt2'), { recursive: true, force: true });
  rmSync(join(folder, 'made'), { recursive: true, force: true });
  await writeFolder(join(folder, 'gpt2'));
  mkdirSync(join(folder, 'my-text'), { recursive: true });
  writeFileSync(join(folder, 'my-text/a.txt'), 'The quick brown fox. '.repeat(80));
  expect(runPage('docs/lora.md')).toContain('adapter_model.safetensors');
  const model = await nn.models.fromPretrained(join(folder, 'gpt2'));
  await peft.loadAdapter(model, join(folder, 'adapter'));
  const trained = [...peft.lorasOf(model).values()].map(({ factors }) => factors[1]?.toArray());
  expect(trained.flat().some((x) => x !== 0)).toBe(true);
});

test('the program of the page generates text from a folder', async () => {
  await writeFolder(join(folder, 'gpt2'));
  const tokenizer = join(root, 'test/golden/transformers/tokenizers/gpt2');
  cpSync(tokenizer, join(folder, 'gpt2'), { recursive: true });
  const pages = ['docs/inference.md', 'docs/large-inference.md'];
  const programs = pages.flatMap((page) => snippetsOf(page, readPage(page), ['js']));
  const [alone, together, streamed] = programs.map(({ code }) => code) as [string, string, string];
  expect(programs).toHaveLength(3);
  expect(runProgram(alone, [])).toMatch(/finishReason: '(length|stop)'/);
  const ranks = [join(root, 'dist/launch/cli.js'), '--num_procs', '2', '--no_local_rank'];
  expect(runProgram(together, ranks, [join(folder, 'gpt2')])).toMatch(/^\[0\] /);
  expect(runProgram(streamed, [], [join(folder, 'gpt2')])).toMatch(/finishReason: '(length|stop)'/);
  const words = [join(root, 'examples/generate.js'), join(folder, 'gpt2'), 'Once', 'Twice'];
  const options = ['--max_new_tokens', '5', '--n', '2', '--device', 'cpu'];
  const out = execFileSync(process.execPath, [...words, ...options], { encoding: 'utf8' });
  expect(out.match(/\[(length|stop)\]/g)).toHaveLength(4);
});

/** The words of an error on the page, and a call that causes it. */
type Mistake = [words: string, make: () => Promise<unknown>];

class Square extends nn.Module {
  readonly l: nn.Linear;

  constructor(outputs = 4) {
    super();
    this.l = new nn.Linear(4, outputs);
  }

  override forward(x: Tensor): Tensor {
    return this.l.call(x).square().mean();
  }
}

const plain: DsConfig = { train_batch_size: 1, optimizer: { type: 'AdamW', params: { lr: 1e-3 } } };
// A value outside the declared types.
const MU = { type: 'MuAdam' } as unknown as configuration.OptimizerConfig;
const build = (config: DsConfig, model = new Square(), strict = false) =>
  initialize({ model, config, strict });

const mistakes: Mistake[] = [
  [
    'train_batch_size: expected train_micro_batch_size_per_gpu x gradient_accumulation_steps x world size, got 7 != 2 x 3 (derived) x 1.',
    () => build({ ...plain, train_batch_size: 7, train_micro_batch_size_per_gpu: 2 }),
  ],
  [
    'expected a value, or a source that fills "auto"',
    () => build({ ...plain, gradient_clipping: 'auto' }),
  ],
  ['This value is not supported yet', () => build({ ...plain, optimizer: MU })],
  ['expected an optimizer, got none', () => build({ train_batch_size: 1 })],
  [
    'sizes with a product that divides',
    () => initDistributed({ worldSize: 1, device: 'cpu', mesh: { tp: 2 } }),
  ],
  [
    'which is unknown. Did you mean',
    () => build({ ...plain, optimzer: {} } as DsConfig, new Square(), true),
  ],
  [
    'expected a finite loss, got NaN. The step was skipped and changed no weight.',
    async () => {
      const { engine } = await build(plain);
      for (let step = 0; step < 2; ++step) {
        engine.backward(engine.forward(Tensor.from([[Number.NaN, 1, 1, 1]])));
        engine.step();
      }
      engine.synchronize();
    },
  ],
  [
    'expected a folder with checkpoints, got ENOENT',
    async () => (await build(plain)).engine.loadCheckpoint(join(folder, 'nothing')),
  ],
  [
    'l.weight: expected [8, 4] f32, got [4, 4] f32',
    async () => {
      await (await build(plain)).engine.saveCheckpoint(join(folder, 'square'));
      await (await build(plain, new Square(8))).engine.loadCheckpoint(join(folder, 'square'));
    },
  ],
];

test.each(mistakes)('the troubleshooting page quotes the message of: %s', async (words, make) => {
  await expect(make()).rejects.toThrow(words);
  expect(readPage('docs/troubleshooting.md')).toContain(words);
});

/** Writes a GPT-2 of two small blocks in the format of Hugging Face. */
async function writeFolder(out: string): Promise<void> {
  for (const result of [out, join(folder, 'made')])
    rmSync(result, { recursive: true, force: true });
  const sizes = { vocabSize: 50257, maxSeq: 64, layers: 2, heads: 2, channels: 16 };
  const { engine } = await initialize({
    model: new nn.models.GPT2(sizes),
    config: { train_batch_size: 1, optimizer: { type: 'SGD', params: { lr: 0.1 } } },
  });
  await engine.saveCheckpoint(join(folder, 'made'));
  engine.destroy();
  await consolidate(join(folder, 'made'), out);
}
