// Declares the charts of docs/charts, with the numbers of the tables.
import {
  at,
  BYTES,
  DECODE,
  FSDP2_OFFLOAD,
  gib,
  llama,
  memoryRows,
  ms,
  OFFLOAD,
  RESIDENT,
  rate,
  SCALING_SERIES,
  scalingOf,
  times,
  training,
} from './published.mjs';

const OURS = '@ds/native';
const COLORS = { [OURS]: '#1f6feb', peer: '#9aa4b2' };
const who = {
  field: 'who',
  type: 'nominal',
  title: null,
  scale: { domain: [OURS, 'PyTorch'], range: [COLORS[OURS], COLORS.peer] },
};

/** Horizontal bars with their values as text. */
function bars(title, values, { value, name, color, width = 380 }) {
  const y = { field: name, type: 'nominal', sort: null, title: null };
  const x = { field: value, type: 'quantitative', title: null, axis: null };
  return {
    title: { text: title, anchor: 'start', fontSize: 13 },
    width,
    height: { step: 22 },
    data: { values },
    encoding: { y, x },
    layer: [
      { mark: { type: 'bar', height: 15 }, encoding: { color } },
      {
        mark: { type: 'text', align: 'left', dx: 4, fontSize: 11 },
        encoding: { text: { field: 'label' } },
      },
    ],
  };
}

function overview() {
  const peer = at(...OFFLOAD, FSDP2_OFFLOAD);
  const all = at(...OFFLOAD, 'clipping rare');
  const half = at(...OFFLOAD, 'half of the state in host memory');
  const resident = at(RESIDENT, 'result', '1558M B8, checkpointing');
  const rows = [
    ['all on the GPU', OURS, resident.ours.step_ms.mean, resident.ours.peak_device_gib],
    [
      'all on the GPU, torch.compile',
      'PyTorch',
      resident['torch.compile'].step_ms,
      resident['torch.compile'].peak_GiB,
    ],
    ['half of the state offloaded', OURS, half.step_ms.mean, half.peak_device_gib],
    ['all state offloaded', OURS, all.step_ms.mean, all.peak_device_gib],
    ['all offloaded, FSDP2', 'PyTorch', peer.step_ms, peer.peak_GiB],
  ].map(([name, by, step, memory]) => ({ name, who: by, step, memory }));
  const labelled = (key, unit) => rows.map((row) => ({ ...row, label: unit(row[key]) }));
  const one = (title, key, unit) =>
    bars(title, labelled(key, unit), { value: key, name: 'name', color: who, width: 220 });
  return {
    hconcat: [
      one('Step time, GPT-2 1558M, one H200', 'step', ms),
      one('GPU memory', 'memory', gib),
    ],
    spacing: 40,
  };
}

function throughput() {
  const rows = [...training(), ...llama()].map((row) => ({
    name: `${row.name} / ${row.peerName}`,
    ratio: row.ratio,
    who: OURS,
    label: times(row.ratio),
  }));
  return bars('Throughput relative to the peer', rows, {
    value: 'ratio',
    name: 'name',
    color: { value: COLORS[OURS] },
  });
}

function zeroMemory() {
  const values = memoryRows().flatMap((row) =>
    BYTES.map((part, order) => ({
      stage: `stage ${row.stage}`,
      part,
      order,
      bytes: row.measured[part] / row.params,
    })),
  );
  return {
    title: { text: 'Bytes a parameter on each of 4 ranks', anchor: 'start', fontSize: 13 },
    width: 380,
    height: { step: 26 },
    data: { values },
    mark: { type: 'bar', height: 18 },
    encoding: {
      y: { field: 'stage', type: 'nominal', sort: null, title: null },
      x: { field: 'bytes', type: 'quantitative', title: null },
      order: { field: 'order' },
      color: {
        field: 'part',
        type: 'nominal',
        title: null,
        sort: BYTES,
        scale: { domain: BYTES, range: ['#1f6feb', '#e8884c', '#55a868'] },
      },
    },
  };
}

function scaling() {
  const values = SCALING_SERIES.flatMap(([series, match]) =>
    scalingOf(match).map((row) => ({
      series,
      gpus: row.world_size ?? row.world,
      samples: (8000 * (row.world_size ?? row.world)) / row.step_ms,
    })),
  );
  const names = SCALING_SERIES.map(([name]) => name);
  const range = ['#1f6feb', '#55a868', '#e8884c', COLORS.peer];
  return {
    title: { text: 'GPT-2 1558M, samples a second', anchor: 'start', fontSize: 13 },
    width: 380,
    height: 220,
    data: { values },
    mark: { type: 'line', point: true },
    encoding: {
      x: { field: 'gpus', type: 'quantitative', title: 'GPUs', axis: { values: [1, 2, 4] } },
      y: { field: 'samples', type: 'quantitative', title: null },
      color: {
        field: 'series',
        type: 'nominal',
        title: null,
        sort: names,
        scale: { domain: names, range },
      },
    },
  };
}

function offloadShare() {
  const rows = [
    ['0', at(RESIDENT, 'result', '1558M B8, checkpointing', 'ours')],
    ['0.5', at(...OFFLOAD, 'half of the state in host memory')],
    ['1', at(...OFFLOAD, 'clipping rare')],
  ];
  const values = rows.map(([ratio, row]) => ({
    name: `ratio ${ratio}`,
    step: row.step_ms.mean,
    label: `${ms(row.step_ms.mean)}, ${gib(row.peak_device_gib)} of GPU memory`,
  }));
  const title = 'Step time by share of the optimizer state in host memory';
  return bars(title, values, {
    value: 'step',
    name: 'name',
    color: { value: COLORS[OURS] },
    width: 300,
  });
}

function decode() {
  const one = (name, tokens, by) => ({ name, tokens, who: by, label: rate(tokens) });
  const values = [
    one('bf16', at(DECODE, 'result', 'bf16', 'rows', 0, 'tokens_per_s'), OURS),
    one('int8', at(DECODE, 'result', 'int8', 'rows', 0, 'tokens_per_s'), OURS),
    one('int4', at(DECODE, 'result', 'int4', 'rows', 0, 'tokens_per_s'), OURS),
    one(
      'bf16, torch.compile',
      at(DECODE, 'result', 'peers', 'plain, compiled, bf16, batch 1', 'tokens_per_s'),
      'PyTorch',
    ),
  ];
  return bars('Llama 8B, one request: tokens a second', values, {
    value: 'tokens',
    name: 'name',
    color: who,
  });
}

/** Charts as Vega-Lite specifications, by the name of their SVG file in docs/charts. */
export const charts = {
  overview,
  throughput,
  'zero-memory': zeroMemory,
  scaling,
  'offload-share': offloadShare,
  decode,
};
