// A rank that joins, opens a group and ends, where the system may refuse threads once it has begun.
import { writeFileSync } from 'node:fs';
import { cpu, type DsError, initDistributed, ones } from '../../lib/index.js';
import { gate } from '../comm/gate.js';

async function main(): Promise<void> {
  await gate();
  const armed = process.env.DS_FAULT_ARMED;
  if (armed) writeFileSync(armed, '');
  const job = await initDistributed({ device: 'cpu', timeout: 0.05 });
  const tensor = ones([8]);
  job.world.allReduce(tensor).wait();
  const group = await job.newGroup(job.world.ranks);
  group?.allReduce(tensor).wait();
  cpu().synchronize();
  await job.destroy();
}

main()
  .then(
    () => 'ended',
    ({ code, message }: DsError) => `${code} ${message}`,
  )
  .then((outcome) => process.stdout.write(`${JSON.stringify(outcome)}\n`));
