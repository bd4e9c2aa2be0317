// Tests that a run that is stopped by a signal at a random step and resumed equals a run without a
// stop.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { DS, Run, scriptOf } from '../launch/jobs.js';
import { random } from '../support/random.js';

const ROOT = join(__dirname, '..', '..');
const STEPS = 60;
/**
 * At this step the run waits for the stop signal, because it may finish before the signal arrives.
 */
const WAITS_AT = 45;

/** The program of resumed-process.ts in plain JavaScript. */
const JAVASCRIPT = `
${scriptOf(join(ROOT, 'lib', 'index')).replace(/require\(([^()]*)\);$/, 'const ds = require($1);')}
const { data, findLatest, initDistributed, initialize, nn, seed } = ds;
const { createHash } = require('node:crypto');
const { existsSync, writeSync } = require('node:fs');
const T = 8;
const windows = {
  length: 50,
  get(index) {
    const row = Int32Array.from({ length: T + 1 }, (_, i) => (index * 7 + i * i) % 31);
    return { tokens: row.slice(0, T), targets: row.slice(1) };
  },
};
async function main(folder, steps, waitsAt, signalled) {
  const job = await initDistributed();
  seed(7);
  const shape = { vocabSize: 31, maxSeq: T, layers: 2, heads: 2, channels: 16, dropout: 0.1 };
  const config = {
    train_micro_batch_size_per_gpu: 2,
    gradient_accumulation_steps: 2,
    optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
    zero_optimization: { stage: 2 },
  };
  const model = new nn.models.GPT2(shape);
  const { engine, trainLoader } = await initialize({ model, config, trainingData: windows, device: 'cpu' });
  if (await findLatest(folder)) await engine.loadCheckpoint(folder);
  void engine.stopSignal;
  for await (const { tokens, targets } of new data.RepeatingLoader(trainLoader)) {
    const before = engine.globalSteps;
    engine.backward(engine.forward(tokens, targets));
    engine.step();
    tokens.dispose();
    targets.dispose();
    if (engine.globalSteps === before) continue;
    if (engine.globalRank === 0) writeSync(1, 'step ' + engine.globalSteps + ';\\n');
    if (engine.globalSteps % 4 === 0) await engine.saveCheckpoint(folder, { asynchronous: true });
    if (engine.globalSteps === waitsAt) while (!existsSync(signalled));
    if (engine.stopSignal.aborted || engine.globalSteps >= steps) break;
  }
  await engine.saveCheckpoint(folder, { keepLast: 2 });
  const sum = createHash('sha256');
  engine.withFullWeights(() => {
    for (const parameter of engine.module.parameters()) sum.update(parameter.toRaw());
  });
  const end = { rank: engine.globalRank, steps: engine.globalSteps, hash: sum.digest('hex') };
  writeSync(1, JSON.stringify(end) + '\\n');
  engine.destroy();
  await job.destroy();
}
const [folder, steps, waitsAt, signalled] = process.argv.slice(-4);
main(folder, Number(steps), Number(waitsAt), signalled);
`;

interface End {
  rank: number;
  steps: number;
  hash: string;
}

let folder: string;
const runs: Run[] = [];
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-resumed-'));
  writeFileSync(join(folder, 'javascript.js'), JAVASCRIPT);
  writeFileSync(join(folder, 'typescript.js'), scriptOf(join(__dirname, 'resumed-process')));
});
afterAll(() => {
  for (const run of runs) for (const pid of run.processes()) process.kill(pid, 'SIGKILL');
  rmSync(folder, { recursive: true, force: true });
});

const signalOf = (checkpoints: string): string => join(folder, `${checkpoints}.signalled`);

function start(language: string, ranks: number, checkpoints: string, waitsAt = 0): Run {
  const launcher = ranks === 1 ? [] : [...DS, '--num_procs', String(ranks)];
  const words = [checkpoints, String(STEPS), String(waitsAt), signalOf(checkpoints)];
  const args = [...launcher, `${language}.js`, ...words];
  const run = new Run(args, folder, { DS_NUM_THREADS: '1' });
  runs.push(run);
  return run;
}

async function endsOf(run: Run): Promise<End[]> {
  const { stdout, stderr } = await run.finished;
  const ends = Array.from(stdout.matchAll(/\{"rank".*\}/g), ([text]) => JSON.parse(text) as End);
  if (ends.length === 0) throw new Error(`no end: ${stdout}${stderr}`);
  return ends.sort((a, b) => a.rank - b.rank);
}

describe.each([1, 2])('%d ranks', (ranks) => {
  let whole: Promise<End[]>;
  beforeAll(() => {
    whole = endsOf(start('typescript', ranks, `whole${ranks}`));
    return whole;
  });

  test.each(['javascript', 'typescript'])('%s', async (language) => {
    const checkpoints = `${language}${ranks}`;
    const stopped = start(language, ranks, checkpoints, WAITS_AT);
    const step = 2 + Math.floor(random() * STEPS * 0.4);
    await stopped.whenPrinted(`step ${step};`);
    stopped.signalGroup('SIGINT');
    writeFileSync(signalOf(checkpoints), '');
    const [{ steps }, ...others] = (await endsOf(stopped)) as [End, ...End[]];
    expect(steps).toBeGreaterThanOrEqual(step);
    expect(steps).toBeLessThan(STEPS);
    for (const other of others) expect(other.steps).toBe(steps);
    expect(await stopped.finished).toMatchObject({ code: ranks === 1 ? 0 : 130 });
    const latest = readFileSync(join(folder, checkpoints, 'latest'), 'utf8').trim();
    expect(latest).toBe(`global_step${steps}`);
    expect(await endsOf(start(language, ranks, checkpoints))).toEqual(await whole);
  });
});
