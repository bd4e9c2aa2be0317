// A Trainer on rows of text, with evaluation, the best model, events and resume.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { nn, seed, Trainer, text } from '@ds/native';

const usage = `node trainer.js [folder] [tokenizer]    (compiled from examples/trainer.ts)
ds --num_procs 2 trainer.js [folder] [tokenizer]
  folder     folder for checkpoints and the model (default trained)
  tokenizer  folder with a tokenizer.json (default: examples/tokenizer)`;

/** The tokenizer among the examples of the installed package. */
function packageTokenizer(): string {
  const { resolve } = createRequire(process.argv[1] as string);
  return join(dirname(resolve('@ds/native/package.json')), 'examples', 'tokenizer');
}

/** A file of rows { prompt, completion }: the alphabet goes on. Each rank makes its own. */
function rows(first: number, count: number): string {
  const letters = 'abcdefghijklmnopqrstuvwxyz';
  const lines = Array.from({ length: count }, (_, i) => {
    const at = (first + i) % (letters.length - 4);
    const [prompt, completion] = [letters.slice(at, at + 2), letters.slice(at + 2, at + 4)];
    return JSON.stringify({
      prompt: [...prompt].join(' '),
      completion: ` ${[...completion].join(' ')}`,
    });
  });
  const own = mkdtempSync(join(tmpdir(), 'rows-'));
  process.on('exit', () => rmSync(own, { recursive: true, force: true }));
  const path = join(own, 'rows.jsonl');
  writeFileSync(path, `${lines.join('\n')}\n`);
  return path;
}

async function main(): Promise<void> {
  if (process.argv.some((word) => word === '--help' || word === '-h')) return console.log(usage);
  const words = process.argv.slice(2).filter((word) => !word.startsWith('--'));
  const [dir = 'trained', folder = packageTokenizer()] = words;
  const tokenizer = text.Tokenizer.fromPretrained(folder);
  seed(1);
  const sizes = { layers: 1, heads: 2, channels: 32, maxSeq: 32 };
  const model = new nn.models.GPT2({ vocabSize: tokenizer.vocabSize, ...sizes });
  const how = { tokenizer, length: 32, packing: false, threads: 0 };
  const train = await text.TextDataset.open({ ...how, files: rows(0, 64) });
  const judged = await text.TextDataset.open({ ...how, files: rows(7, 12) });

  const trainer = new Trainer({
    model,
    tokenizer,
    train,
    eval: { data: judged, every: 8 },
    epochs: 6,
    batchSize: 4,
    lr: 1e-2,
    schedule: 'cosine',
    warmup: 4,
    device: 'cpu',
    deepspeed: { zero_optimization: { stage: 2 } },
    log: { every: 8 },
    save: { dir: join(dir, 'checkpoints'), every: 16, keep: 2, best: 'loss' },
    report: ['csv'],
    progress: false,
  });
  const { globalRank } = await trainer.engine();
  const say = (line: string): void => {
    if (globalRank === 0) console.log(line);
  };
  trainer.on('evaluate', ({ step, metrics, isBest }) => {
    say(`step ${step}: evaluation ${metrics.loss.toFixed(3)}${isBest ? ', the best' : ''}`);
  });
  for await (const event of trainer.train({ resume: true })) {
    if (event.type === 'log') say(`step ${event.step}: loss ${event.loss.toFixed(3)}`);
    if (event.type === 'save') say(`saved ${event.path}`);
  }
  const { loss } = await trainer.evaluate();
  say(`evaluation at the end: ${loss.toFixed(3)}`);
  await trainer.save(join(dir, 'model'));
  await trainer.destroy();
}

main();
