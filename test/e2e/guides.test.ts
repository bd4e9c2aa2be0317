// The main programs of the guides run as they stand, as processes beside the data that they name.
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { consolidate, initialize, nn, type Tensor } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { readPage, snippetsOf } from '../unit/docs/snippets.js';

const root = packageRoot();
let folder: string;

// Inside the package, so that its name leads to it.
beforeAll(() => {
  mkdirSync(join(root, 'build'), { recursive: true });
  folder = mkdtempSync(join(root, 'build/guides-'));
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Runs the only JavaScript of a page, by Node or as the script of `ds`. */
function runPage(page: string, ...before: string[]): string {
  const [program, ...more] = snippetsOf(page, readPage(page), ['js']);
  expect(more).toEqual([]);
  const script = join(folder, 'program.mjs');
  writeFileSync(script, program?.code ?? '');
  const options = { encoding: 'utf8', cwd: folder, timeout: 110_000 } as const;
  return execFileSync(process.execPath, [...before, script], options);
}

test('the training loop learns, goes on where it stopped, and runs on two ranks', () => {
  const out = runPage('docs/training-loop.md');
  const losses = Array.from(out.matchAll(/epoch \d: (\d\.\d+)/g), ([, loss]) => Number(loss));
  expect(losses).toHaveLength(5);
  expect(losses.at(-1)).toBeLessThan((losses[0] as number) / 2);
  expect(readFileSync(join(folder, 'checkpoints/best/latest'), 'utf8')).toMatch(/^best/);
  expect(runPage('docs/training-loop.md')).toBe(''); // All epochs are done.
  rmSync(join(folder, 'checkpoints'), { recursive: true });
  const ranks = [join(root, 'dist/launch/cli.js'), '--num_procs', '2'];
  expect(runPage('docs/training-loop.md', ...ranks)).toMatch(/^\[0\] epoch 5: /m);
}, 120_000);

test('fine-tuning reads a folder of Hugging Face, trains its upper half and gives one back', async () => {
  await writeFolder(join(folder, 'gpt2'));
  mkdirSync(join(folder, 'my-text'));
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
}, 120_000);

/** A GPT-2 of two small blocks, as Hugging Face keeps it. */
async function writeFolder(out: string): Promise<void> {
  const sizes = { vocabSize: 50257, maxSeq: 64, layers: 2, heads: 2, channels: 16 };
  const { engine } = await initialize({
    model: new nn.models.GPT2(sizes),
    config: { train_batch_size: 1, optimizer: { type: 'SGD', params: { lr: 0.1 } } },
  });
  await engine.saveCheckpoint(join(folder, 'made'));
  engine.destroy();
  await consolidate(join(folder, 'made'), out);
}
