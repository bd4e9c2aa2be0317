// Tests which of the visible devices a rank uses.
import { localDevice } from '../../lib/comm/join-settings.js';

test.each([
  ['auto', 0, 0, 'cpu'],
  ['auto', 3, 0, 'cpu'],
  ['auto', 0, 8, 'cuda:0'],
  ['auto', 7, 8, 'cuda:7'],
  // srun --gpus-per-task=1: every task sees one GPU, its own.
  ['auto', 5, 1, 'cuda:0'],
  // srun --gpus-per-task=2.
  ['auto', 2, 2, 'cuda:0'],
  ['auto', 3, 2, 'cuda:1'],
  ['cuda', 1, 2, 'cuda:1'],
  // Without a GPU the request stays 'cuda', so that opening the device throws.
  ['cuda', 1, 0, 'cuda'],
] as const)('%s of local rank %i that sees %i GPUs is %s', (expected, localRank, visible, name) => {
  expect(localDevice(expected, localRank, visible)).toBe(name);
});
