// Trains a small GPT-2 on rows of text with a Trainer: evaluation, best model, events and resume.
// Run: node trainer.js    (compiled from examples/trainer.ts)
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { nn, seed, Trainer, text } from '@ds/native';

const usage = `node trainer.js [folder] [tokenizer]    (compiled from examples/trainer.ts)
ds --num_procs 2 trainer.js [folder] [tokenizer]
  folder     folder for checkpoints and the model (default trained)
  tokenizer  folder with a tokenizer.json (default: examples/tokenizer)`;

/** Returns the folder of the tokenizer in the installed package. */
function tokenizerFolder(): string {
  const { resolve } = createRequire(process.argv[1] as string);
  return join(dirname(resolve('@ds/native/package.json')), 'examples', 'tokenizer');
}

/** Writes a file of rows { prompt, completion } that continue the alphabet. Returns its path. */
function writeRows(first: number, count: number): string {
  const letters = 'abcdefghijklmnopqrstuvwxyz';
  const lines = Array.from({ length: count }, (_, i) => {
    const at = (first + i) % (letters.length - 4);
    const [prompt, completion] = [letters.slice(at, at + 2), letters.slice(at + 2, at + 4)];
    return JSON.stringify({
      prompt: [...prompt].join(' '),
      completion: ` ${[...completion].join(' ')}`,
    });
  });
  const temporary = mkdtempSync(join(tmpdir(), 'rows-'));
  process.on('exit', () => rmSync(temporary, { recursive: true, force: true }));
  const path = join(temporary, 'rows.jsonl');
  writeFileSync(path, `${lines.join('\n')}\n`);
  return path;
}

async function main(): Promise<void> {
  if (process.argv.some((word) => word === '--help' || word === '-h')) return console.log(usage);
  const args = process.argv.slice(2).filter((word) => !word.startsWith('--'));
  const [outputFolder = 'trained', tokenizerPath = tokenizerFolder()] = args;
  const tokenizer = text.Tokenizer.fromPretrained(tokenizerPath);
  seed(1);
  const sizes = { layers: 1, heads: 2, channels: 32, maxSeq: 32 };
  const model = new nn.models.GPT2({ vocabSize: tokenizer.vocabSize, ...sizes });
  const options = { tokenizer, length: 32, packing: false, threads: 0 };
  const train = await text.TextDataset.open({ ...options, files: writeRows(0, 64) });
  const evaluation = await text.TextDataset.open({ ...options, files: writeRows(7, 12) });

  const trainer = new Trainer({
    model,
    tokenizer,
    train,
    eval: { data: evaluation, every: 8 },
    epochs: 6,
    batchSize: 4,
    lr: 1e-2,
    schedule: 'cosine',
    warmup: 4,
    device: 'cpu',
    deepspeed: { zero_optimization: { stage: 2 } },
    log: { every: 8 },
    save: { dir: join(outputFolder, 'checkpoints'), every: 16, keep: 2, best: 'loss' },
    report: ['csv'],
    progress: false,
  });
  const { globalRank } = await trainer.engine();
  const printOnRank0 = (line: string): void => {
    if (globalRank === 0) console.log(line);
  };
  trainer.on('evaluate', ({ step, metrics, isBest }) => {
    printOnRank0(
      `step ${step}: evaluation ${metrics.loss.toFixed(3)}${isBest ? ', the best' : ''}`,
    );
  });
  for await (const event of trainer.train({ resume: true })) {
    if (event.type === 'log') printOnRank0(`step ${event.step}: loss ${event.loss.toFixed(3)}`);
    if (event.type === 'save') printOnRank0(`saved ${event.path}`);
  }
  const { loss } = await trainer.evaluate();
  printOnRank0(`evaluation at the end: ${loss.toFixed(3)}`);
  await trainer.save(join(outputFolder, 'model'));
  await trainer.destroy();
}

main();
