// Declares the tables of docs/benchmarks.md, and the numbers of bench/results in each of them.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

const results = new Map();

/** The JSON of a result file. */
function read(file) {
  if (!results.has(file)) {
    const path = join(import.meta.dirname, 'results', `${file}.json`);
    results.set(file, JSON.parse(readFileSync(path, 'utf8')));
  }
  return results.get(file);
}

/** The value at `keys` of a result file. Throws if it does not exist. */
export function at(file, ...keys) {
  let value = read(file);
  for (const key of keys) {
    value = value?.[key];
    if (value === undefined) throw new Error(`bench/results/${file}.json: no ${keys.join(' > ')}`);
  }
  return value;
}

const fixed = (digits) => (value) => Number(value).toFixed(digits);
export const ms = (value) => `${fixed(0)(value)} ms`;
export const gib = (value) => `${fixed(1)(value)} GiB`;
export const rate = (value) => Math.round(value).toLocaleString('en-US');
export const times = (value) => `${fixed(2)(value)}x`;
const command = (text) =>
  `\`${text.replace('npm run bench -- ', 'bench ').replace(/^ds .*main\.js /, 'bench ')}\``;

/** `GPU, cores, commit, date, file`: where the numbers of a table come from. */
function source(file, ...keys) {
  const { host, commit, date } = at(file, ...keys);
  const gpu = host.gpu ?? host.cpu;
  return { gpu, cores: host.cores, commit, date, file };
}

export const RESIDENT = 'train-h200-2026-11-29';
export const OFFLOAD = ['offload-h200', 'masters in halves that are tried out'];
const LLAMA = 'llama-h200';
const SCALING = 'zero-1558M-weak-scaling';
export const DECODE = 'decode-8B-h200';
const MEMORY = 'zero-memory-4-ranks';
const CPU = 'cpu-torch';

/** Our rate and a peer's rate of one call. */
function pair(name, file, row, peerName, peer) {
  const ours = at(file, 'result', row, 'ours');
  const other = at(file, 'result', row, peer);
  const peerRate = other.tok_s ?? other.tokens_per_second;
  return {
    name,
    peerName,
    ours: ours.tokens_per_second,
    gib: ours.peak_device_gib,
    peer: peerRate,
    peerGib: other.peak_GiB ?? other.peak_device_gib,
    ratio: ours.tokens_per_second / peerRate,
    command: ours.command,
    commit: at(file, 'result', row).call?.commit ?? at(file, 'commit'),
  };
}

const LLAMA_1B = '1B shape, B8 T2048, resident, fewer instructions per attention tile';
const LORA =
  "8B shape, LoRA r 16 on all linear layers, B4 T2048, checkpointing, adapters' products in 1";
const QLORA = '8B shape, QLoRA r 16, B2 T2048, checkpointing';
const OFFLOAD_8B =
  '8B shape, B4 T2048, checkpointing, all of the optimizer in host memory, beside FSDP2';
const nameOf = (start) => Object.keys(at(LLAMA, 'result')).find((name) => name.startsWith(start));

export const training = () => [
  pair('GPT-2 1558M, B8', RESIDENT, '1558M B8', 'torch.compile', 'torch.compile'),
  pair(
    'GPT-2 1558M, B8, checkpointing',
    'train-h200-2026-11-30',
    '1558M B8, call 3',
    'torch.compile',
    'torch.compile',
  ),
];
export const llama = () => [
  pair('Llama 1B, B8, T2048', LLAMA, LLAMA_1B, 'torch.compile', 'torch.compile, written out'),
  pair('Llama 8B, LoRA r16, B4', LLAMA, nameOf(LORA), 'PEFT', 'PEFT, eager, autocast'),
  pair(
    'Llama 8B, QLoRA r16, B2',
    LLAMA,
    QLORA,
    'NF4 in PyTorch',
    'NF4 written out in PyTorch (a peer in memory, not in time)',
  ),
  pair('Llama 8B, B4, offload', LLAMA, OFFLOAD_8B, 'FSDP2', 'FSDP2, CPUOffloadPolicy'),
];

const pairTable = (rows, from) => ({
  from,
  head: [
    'workload',
    'tokens/s',
    'GPU memory',
    'peer',
    'tokens/s of the peer',
    'its GPU memory',
    'ratio',
    'commit',
    'command',
  ],
  rows: rows.map((row) => [
    row.name,
    rate(row.ours),
    gib(row.gib),
    row.peerName,
    rate(row.peer),
    gib(row.peerGib),
    times(row.ratio),
    row.commit,
    command(row.command),
  ]),
});

const OFFLOAD_ROWS = [
  ['optimizer state offloaded', 'clipping rare'],
  ['the same, every step clipped', 'every step clipped'],
  ['the same, `gpu_share: 0`', 'clipping rare, share 0'],
  ['half of the state (`ratio: 0.5`)', 'half of the state in host memory'],
  ['state and weights (stage 3)', 'stage 3, weights in host memory, too'],
  ['the same, `super_offload: false`', 'stage 3, weights in host memory, too, after the verdict'],
];
export const FSDP2_OFFLOAD = 'FSDP2, CPUOffloadPolicy, no clipping';

function offloadTable() {
  const peer = at(...OFFLOAD, FSDP2_OFFLOAD);
  const ours = OFFLOAD_ROWS.map(([name, key]) => {
    const row = at(...OFFLOAD, key);
    const host = gib(row.peak_host_rss_gib);
    const step = row.step_ms.mean;
    return [
      name,
      ms(step),
      gib(row.peak_device_gib),
      host,
      times(peer.step_ms / step),
      command(row.command),
    ];
  });
  return {
    from: source(...OFFLOAD),
    head: [
      'GPT-2 1558M, B8, checkpointing',
      'step',
      'GPU memory',
      'host memory',
      'ratio to FSDP2',
      'command',
    ],
    rows: [
      ...ours,
      [
        'PyTorch FSDP2, `CPUOffloadPolicy`',
        ms(peer.step_ms),
        gib(peer.peak_GiB),
        '',
        '',
        `\`${peer.command}\``,
      ],
    ],
  };
}

const scalingRows = () => at(SCALING, 'result').filter((row) => !row.communication);
export const scalingOf = (match) =>
  scalingRows()
    .filter(match)
    .sort((a, b) => (a.world_size ?? a.world) - (b.world_size ?? b.world));

export const SCALING_SERIES = [
  ['ZeRO 0', (row) => row.stage === 0],
  ['ZeRO 2', (row) => row.stage === 2],
  ['ZeRO 3', (row) => row.stage === 3],
  ['FSDP2', (row) => row.peer === 'torch-fsdp2'],
];

function scalingTable() {
  const cell = (row) =>
    `${ms(row.step_ms)}, ${gib(row.peak_device_gib ?? row.peak_GiB)}, ${fixed(0)(100 * row.share_of_linear)} %`;
  return {
    from: source(SCALING),
    head: ['GPT-2 1558M, B8 a GPU', '1 GPU', '2 GPUs', '4 GPUs'],
    rows: SCALING_SERIES.map(([name, match]) => [name, ...scalingOf(match).map(cell)]),
  };
}

function decodeTable() {
  const rows = [
    ...at(DECODE, 'result', 'bf16', 'rows').map((row) => ['bf16', row]),
    ['int8', at(DECODE, 'result', 'int8', 'rows', 0)],
    ['int4, groups of 128', at(DECODE, 'result', 'int4', 'rows', 0)],
  ];
  const peer = at(DECODE, 'result', 'peers', 'plain, compiled, bf16, batch 1');
  const cells = rows.map(([name, row]) => [
    name,
    String(row.batch),
    rate(row.tokens_per_s),
    `${fixed(2)(row.decode_ms_per_step)} ms`,
    name === 'bf16' && row.batch === 1 ? times(row.tokens_per_s / peer.tokens_per_s) : '',
  ]);
  const other = [
    'PyTorch, compiled, bf16',
    '1',
    rate(peer.tokens_per_s),
    `${fixed(2)(peer.decode_ms_per_step)} ms`,
    '',
  ];
  return {
    from: source(DECODE),
    head: ['Llama 8B, weights', 'batch', 'tokens/s', 'step', 'ratio'],
    rows: [...cells, other],
  };
}

function mixtureTable() {
  const [row] = at('decode-gpt-oss-h200', 'result', 'rows');
  const cells = ['1', rate(row.tokens_per_s), `${fixed(2)(row.decode_ms_per_step)} ms`];
  const head = ['gpt-oss-20B shape', 'batch', 'tokens/s', 'step'];
  return {
    from: source('decode-gpt-oss-h200'),
    head,
    rows: [['experts in MXFP4', ...cells]],
  };
}

const serveTable = () => ({
  from: source('serve-2048-8B-h200'),
  head: ['Llama 8B, bf16, 32 tokens in', 'clients', 'out', 'tokens/s'],
  rows: [
    ['over HTTP', '128', '2048', rate(at('serve-2048-8B-h200', 'result', 'http_tokens_per_s'))],
  ],
});

function embedTable() {
  const runs = at('embed-h200', 'result', 'rows');
  const own = runs.reduce((sum, { tokens_per_s }) => sum + tokens_per_s, 0) / runs.length;
  const { eager, 'compiled by layers': compiled } = at('embed-h200', 'result', 'peers');
  return {
    from: source('embed-h200'),
    head: ['ModernBERT base, bf16, batch 64, up to 256 tokens', 'tokens/s', 'ratio'],
    rows: [
      ['embeddings', rate(own), times(own / compiled.tokens_per_s)],
      ['transformers, compiled by layers', rate(compiled.tokens_per_s), ''],
      ['transformers', rate(eager.tokens_per_s), ''],
    ],
  };
}

export const BYTES = ['weights', 'gradients', 'optimizer'];
export const memoryRows = () => at(MEMORY, 'result', 'rows');

const memoryTable = () => ({
  from: source(MEMORY),
  head: ['ZeRO stage, 4 ranks', ...BYTES.map((part) => `${part}, bytes a parameter`)],
  rows: memoryRows().map((row) => [
    String(row.stage),
    ...BYTES.map((part) => fixed(2)(row.measured[part] / row.params)),
  ]),
});

/** Speed relative to PyTorch on the CPU, the range over the measured shapes. */
function cpuTable() {
  const rows = at(CPU, 'result', 'rows').filter(({ ratio }) => ratio);
  const speed = (op, dtype, backward) => {
    const same = rows.filter(
      (row) => row.op === op && row.dtype === dtype && row.backward === backward,
    );
    const speeds = same.map(({ ratio }) => 1 / ratio.wall);
    if (speeds.length === 0) return '';
    const ends = [times(Math.min(...speeds)), times(Math.max(...speeds))];
    return [...new Set(ends)].join(' to ');
  };
  const rowOf = ([op, name, backward = false]) => [
    name,
    speed(op, 'f32', backward),
    speed(op, 'bf16', backward),
  ];
  return {
    from: source(CPU),
    head: ['one thread, speed relative to PyTorch', 'f32', 'bf16'],
    rows: [
      ['train', 'a training step of GPT-2', true],
      ['decode', 'generation, Llama of 62M, batch 1 and 8'],
      ['matmul', 'matrix product'],
      ['matmul', 'matrix product, forward and backward', true],
      ['linear', 'linear layer, 1 to 67 rows'],
      ['softmax', 'softmax'],
      ['softmax', 'softmax, forward and backward', true],
      ['layerNorm', 'layer norm'],
      ['layerNorm', 'layer norm, forward and backward', true],
      ['gelu', 'GELU'],
      ['gelu', 'GELU, forward and backward', true],
      ['attention', 'causal attention'],
      ['attention', 'causal attention, forward and backward', true],
      ['embedding', 'embedding'],
      ['embedding', 'embedding, forward and backward', true],
      ['adamw', 'AdamW'],
    ].map(rowOf),
  };
}

/** Tables of docs/benchmarks.md, by the name in `<!-- table: NAME -->`. */
export const tables = {
  cpu: cpuTable,
  training: () => pairTable(training(), source(RESIDENT)),
  llama: () => pairTable(llama(), source(LLAMA)),
  offload: offloadTable,
  scaling: scalingTable,
  decode: decodeTable,
  mixture: mixtureTable,
  serve: serveTable,
  embed: embedTable,
  'zero-memory': memoryTable,
};
