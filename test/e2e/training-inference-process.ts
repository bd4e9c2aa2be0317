// One rank that trains, and generates text between the steps.
import { deepStrictEqual } from 'node:assert/strict';
import { initDistributed } from '../../lib/comm/index.js';
import type { DeviceKind } from '../../lib/runtime/device.js';
import { device as findDevice } from '../../lib/runtime/device.js';
import { type Trained, trainAndContinue } from './training-inference.js';

async function main(): Promise<void> {
  const { device, options } = JSON.parse(process.argv[2] ?? '') as {
    device: DeviceKind;
    options: Trained;
  };
  const job = await initDistributed(device === 'cpu' ? { device } : {});
  const localDevice = findDevice(job.world.device.name);
  const plain = await trainAndContinue(options, localDevice, false);
  // Only rank 1 generates: no rank waits for another one.
  deepStrictEqual(await trainAndContinue(options, localDevice, job.rank === 1), plain);
  await job.destroy();
  console.log(JSON.stringify(true));
}

void main();
