// One of two ranks that share a dense layer and have an expert each.
import assert from 'node:assert/strict';
import { initDistributed } from '../../lib/comm/index.js';
import { initialize, optim } from '../../lib/index.js';
import { configOf, Experts, engineOf, STAGES, type Trained, train } from './expert-groups.js';

async function main(): Promise<void> {
  const { device } = JSON.parse(process.argv[2] ?? '') as { device: 'cpu' | 'cuda' };
  const job = await initDistributed(device === 'cpu' ? { device: 'cpu' } : {});
  const zeroGroup = await job.mesh.group([]);
  const trained: Trained[] = [];
  for (const stage of STAGES) {
    const engine = await engineOf(new Experts([job.rank]), configOf(stage, 2), { zeroGroup });
    trained.push(train(engine));
    engine.destroy();
  }
  const model = new Experts([job.rank]);
  const groups = [{ params: model.parameters(), zeroGroup }];
  const optimizer = new optim.Lamb(groups, { lr: 0.01 });
  await assert.rejects(
    initialize({ model, config: configOf(0, 2), optimizer }),
    /optimizer Lamb: expected an elementwise optimizer with a zeroGroup of a parameter group/,
  );
  await job.destroy();
  console.log(JSON.stringify(trained));
}

void main();
