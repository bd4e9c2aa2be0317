// The device that a rank takes among those it sees.
import { localDevice } from '../../lib/comm/local-device.js';

test.each([
  [0, 0, 'cpu'],
  [3, 0, 'cpu'],
  [0, 8, 'cuda:0'],
  [7, 8, 'cuda:7'],
  // srun --gpus-per-task=1: every task sees one GPU, its own.
  [5, 1, 'cuda:0'],
  // srun --gpus-per-task=2.
  [2, 2, 'cuda:0'],
  [3, 2, 'cuda:1'],
])('local rank %i that sees %i GPUs takes %s', (localRank, visible, name) => {
  expect(localDevice(localRank, visible)).toBe(name);
});
