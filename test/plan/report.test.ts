// How a plan names a way in its table, and the longest sample that a model takes.
import { nn } from '../../lib/index.js';
import {
  formatPrediction,
  H200,
  type PlanRequest,
  plainSetup,
  predictCandidate,
  requireLength,
  type Setup,
  sizesOf,
} from '../../lib/plan/index.js';

const GIB = 2 ** 30;
const sizes = sizesOf(new nn.models.GPT2(nn.models.GPT2.config('124M')));

const request: PlanRequest = {
  sizes,
  batch: 8,
  seq: 1024,
  precision: 'bf16',
  rates: H200,
  bf16States: false,
  deviceMemory: 139 * GIB,
  hostMemory: 128 * GIB,
  diskMemory: GIB,
  max: { tensor: 2, stages: 2 },
  cluster: { nodes: 1, devicesPerNode: 4, coresPerNode: 16, nodeLink: 50e9 },
};

/** The name of a way, as its row ends. */
function nameOf(changed: Partial<Setup>): string {
  const candidate = predictCandidate(request, { ...plainSetup, ...changed });
  const row = formatPrediction([candidate], request).split('\n')[1] ?? '';
  return row.slice(row.indexOf('stage '));
}

test.each<[Partial<Setup>, string]>([
  [{}, 'stage 0, micro-batch 1'],
  [{ stage: 2, accumulation: 2 }, 'stage 2, micro-batch 1 x 2'],
  [{ tensor: 2 }, 'stage 0, 2 ranks a layer, micro-batch 1'],
  [{ stages: 2 }, 'stage 0, 2 pipeline stages, micro-batch 1'],
  [{ tensor: 2, stages: 2 }, 'stage 0, 2 ranks a layer, 2 pipeline stages, micro-batch 1'],
  [{ checkpointing: true, microBatch: 4 }, 'stage 0, checkpointing, micro-batch 4'],
  [{ optimizer: 'cpu' }, 'stage 0, optimizer on the host, micro-batch 1'],
  [{ optimizer: 'cpu', ratio: 0.5 }, 'stage 0, optimizer on the host (ratio 0.5), micro-batch 1'],
  [
    { optimizer: 'cpu', ratio: 0.5, gpuShare: 0.25 },
    'stage 0, optimizer on the host (ratio 0.5, gpu_share 0.25), micro-batch 1',
  ],
  [{ optimizer: 'nvme' }, 'stage 0, optimizer on disk, micro-batch 1'],
  [{ speculates: false }, 'stage 0, micro-batch 1'],
  [{ weights: 'cpu', stage: 3 }, 'stage 3, weights on the host, micro-batch 1'],
])('%j is named', (changed, name) => {
  expect(nameOf(changed)).toBe(name);
});

test('an optimizer on the host that waits for the whole step is named so', () => {
  const waits = { optimizer: 'cpu', speculates: false } as const;
  expect(nameOf(waits)).toMatch(
    /^stage 0, optimizer on the host, super_offload off, micro-batch 1$/,
  );
});

test('a sample may be as long as the model allows', () => {
  expect(sizes.maxSeq).toBe(1024);
  for (const seq of [1, 1023, 1024]) expect(() => requireLength('plan', seq, sizes)).not.toThrow();
  for (const seq of [1025, 5000]) {
    const message = `plan seq: expected at most the model's 1024, got ${seq}`;
    expect(() => requireLength('plan', seq, sizes)).toThrow(message);
  }
});
