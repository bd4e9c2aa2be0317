// Tests the sums of a trace by role.

import { formatRoles, roleOfOp, sumByRole } from '../../lib/profiler/roles.js';
import type { TraceEvent, TraceFile } from '../../lib/profiler/trace-events.js';
import { opNames } from '../../lib/runtime/kernels.generated.js';

const label = (name: string, pid: number, tid: number, text: string): TraceEvent => ({
  name,
  cat: '__metadata',
  ph: 'M',
  ts: 0,
  dur: 0,
  pid,
  tid,
  args: { name: text },
});
const span = (name: string, cat: string, tid: number, [ts, ms]: [number, number], pid = 2) =>
  ({ name, cat, ph: 'X', ts, dur: ms * 1000, pid, tid }) as const;

const lanes = [
  label('process_name', 1, 0, 'JavaScript'),
  label('process_name', 2, 0, 'device'),
  label('thread_name', 2, 1, 'phases'),
  label('thread_name', 2, 2, 'compute'),
  label('thread_name', 2, 3, 'gradients'),
];
const traceOf = (...events: TraceEvent[]): TraceFile => ({
  traceEvents: [...lanes, ...events],
  displayTimeUnit: 'ms',
  otherData: {},
});

test('each role has its ops', () => {
  const expected = {
    attention: ['Attention', 'AttentionBackward', 'PagedAttention', 'Rope', 'RotaryStore'],
    linears: [
      'Matmul',
      'GroupedMatmul',
      'Fp8Quantize',
      'Fp8Matmul',
      'Nf4Dequantize',
      'AdapterShrink',
    ],
    norms: ['LayerNorm', 'RmsNormBackward'],
    loss: ['CrossEntropy', 'CrossEntropyBackward'],
    optimizer: ['AdamW', 'AdamWHalves', 'Lion', 'MuonDirection', 'SumOfSquares', 'Sgd', 'Rmsprop'],
    rest: ['Embedding', 'Swiglu', 'Unary', 'Reduce', 'RandomNormal', 'Copy', 'Softmax'],
  };
  for (const [role, ops] of Object.entries(expected)) {
    for (const op of ops) {
      expect(opNames).toContain(op);
      expect([op, roleOfOp(op)]).toEqual([op, role]);
    }
  }
});

test('rows are means over steps, and idle time is the rest of the compute stream', () => {
  const file = traceOf(
    span('step 3', 'step', 1, [0, 10]),
    span('step 4', 'step', 1, [10_000, 14]),
    span('forward', 'phase', 1, [0, 6]),
    span('Matmul', 'op', 2, [0, 4]),
    span('Attention', 'op', 2, [4000, 2]),
    span('Matmul', 'op', 2, [10_000, 6]),
    span('copy', 'copy', 2, [16_000, 1]),
    span('AdamW', 'op', 2, [17_000, 3]),
    span('allReduce of gradients', 'op', 3, [2000, 5]),
    span('wait for numbers', 'wait', 1, [0, 9], 1),
  );
  const { steps, stepMs, roles } = sumByRole(file);
  expect([steps, stepMs]).toEqual([2, 12]);
  const ms = Object.fromEntries(roles.map(({ role, ms: one }) => [role, one]));
  expect(ms).toEqual({
    attention: 1,
    linears: 5,
    norms: 0,
    loss: 0,
    optimizer: 1.5,
    rest: 0.5,
    idle: 4,
    communication: 2.5,
  });
  expect(roles.find(({ role }) => role === 'linears')?.share).toBeCloseTo(10 / 24, 12);
});

test('collectives of the CPU count, and a trace without a step has no rows', () => {
  const cpu = [
    label('process_name', 4, 0, 'collectives'),
    label('thread_name', 4, 1, 'between ranks'),
  ];
  const file = traceOf(
    ...cpu,
    span('step 1', 'step', 1, [0, 4]),
    span('allGather', 'collective', 1, [0, 1], 4),
  );
  expect(sumByRole(file).roles.at(-1)).toEqual({ role: 'communication', ms: 1, share: 0.25 });
  expect(sumByRole(traceOf()).roles).toEqual([]);
});

test('the table has a row for each role', () => {
  const file = traceOf(span('step 1', 'step', 1, [0, 4]), span('Matmul', 'op', 2, [0, 3]));
  expect(formatRoles(sumByRole(file)).split('\n')).toEqual([
    'device time by role, mean of 1 step',
    'attention           0.00 ms     0.0 %',
    'linears             3.00 ms    75.0 %',
    'norms               0.00 ms     0.0 %',
    'loss                0.00 ms     0.0 %',
    'optimizer           0.00 ms     0.0 %',
    'rest                0.00 ms     0.0 %',
    'idle                1.00 ms    25.0 %',
    'communication       0.00 ms     0.0 %',
    'step                4.00 ms   100.0 %',
  ]);
});
