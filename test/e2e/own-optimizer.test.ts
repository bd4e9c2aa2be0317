// The optimizer class of docs/training-loop.md trains: without an engine, and with one at several
// stages, also with offload, with equal losses.
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { readPage, snippetsOf } from '../docs/snippets.js';

const TRAINING = `
import { initialize, nn, scope, seed, Tensor } from '@ds/native';

class Line extends nn.Module {
  layer = new nn.Linear(4, 1);
  loss = new nn.MSELoss();
  forward(x, y) {
    return this.loss.call(this.layer.call(x), y);
  }
}
const losses = {};
async function train(name, steps, step) {
  for (let i = 0; i < steps; i++) {
    losses[name] = scope(() => step(Tensor.from([[1, 2, 3, i % 3]]), Tensor.from([[1]])));
  }
}
const made = (switchAt) => {
  seed(1);
  const model = new Line();
  return { model, optimizer: new AdamThenSgd(model.parameters(), switchAt, 0.05) };
};
const alone = (switchAt) => {
  const { model, optimizer } = made(switchAt);
  return (x, y) => {
    const loss = model.call(x, y);
    loss.backward();
    nn.clipGradNorm(model.parameters(), 1);
    optimizer.step();
    optimizer.zeroGrad();
    return loss.item();
  };
};
await train('alone', 12, alone(6));
await train('adam', 12, alone(12));
const cpu = { offload_optimizer: { device: 'cpu' } };
const zeros = { 'stage 0': { stage: 0 }, offload: { stage: 2, ...cpu }, 'stage 3': { stage: 3, ...cpu } };
for (const [name, zero_optimization] of Object.entries(zeros)) {
  const { engine } = await initialize({ ...made(6), config: { train_batch_size: 1, zero_optimization } });
  await train(name, 12, (x, y) => {
    const loss = engine.forward(x, y);
    engine.backward(loss);
    engine.step();
    return loss.item();
  });
  engine.destroy();
}
console.log(JSON.stringify(losses));
`;

test('a custom optimizer trains at every stage as without an engine', () => {
  const page = 'docs/training-loop.md';
  const found = snippetsOf(page, readPage(page), ['ts']);
  const [snippet] = found.filter(({ code }) => code.includes('class AdamThenSgd'));
  const { outputText } = ts.transpileModule(snippet?.code ?? '', {
    compilerOptions: { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext },
  });
  // Inside the package, so that its name leads to it.
  mkdirSync(join(packageRoot(), 'build'), { recursive: true });
  const folder = mkdtempSync(join(packageRoot(), 'build/optimizer-'));
  const script = join(folder, 'program.mjs');
  writeFileSync(script, outputText + TRAINING);
  const out = execFileSync(process.execPath, [script], { encoding: 'utf8', timeout: 120_000 });
  rmSync(folder, { recursive: true });
  const { alone, adam, ...engines } = JSON.parse(out);
  expect(alone).not.toBe(adam);
  expect(alone).toBeLessThan(1);
  expect(engines).toEqual({ 'stage 0': alone, offload: alone, 'stage 3': alone });
});
