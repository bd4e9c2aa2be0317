// One rank that follows recipes one after the other and reports on each.
import { initDistributed } from '../../lib/comm/index.js';
import { type Followed, follow, type Recipe } from './recipe-training.js';

async function main(): Promise<void> {
  const { device, recipes } = JSON.parse(process.argv[2] ?? '') as {
    device: 'cpu' | 'cuda';
    recipes: Recipe[];
  };
  const world = await initDistributed(device === 'cpu' ? { device } : {});
  const reports: Followed[] = [];
  for (const recipe of recipes) reports.push(await follow(recipe));
  await world.destroy();
  console.log(JSON.stringify(reports));
}

void main();
