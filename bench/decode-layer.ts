// Measures the cost of each kernel of a Llama 8B layer in a recorded step. The cost is the
// difference between a chain of layers with and without the kernel, in microseconds.
import type { Device } from '../lib/runtime/device.js';
import { Graph } from '../lib/runtime/graph.js';
import * as kernels from '../lib/runtime/kernels.generated.js';
import { Event } from '../lib/runtime/stream.js';
import { inOrder, Tensor } from '../lib/tensor/index.js';
import { median } from './report.js';

const [WIDTH, HIDDEN, HEADS, KEY_HEADS, HEAD, BLOCK] = [4096, 14_336, 32, 8, 128, 64];
const JOINED = (HEADS + 2 * KEY_HEADS) * HEAD;
/** Layers of the chain; their weights exceed every cache. */
const LAYERS = 16;
/** Tokens of each text, and blocks of its row of the table. */
const [TOKENS, TABLE] = [192, 8];

type Bits = 16 | 8 | 4;
const PLAIN = { bias: null, aux: null, transA: false, transB: true, epilogue: 'none' } as const;

function drawTensor(
  shape: readonly number[],
  device: Device,
  dtype: 'bf16' | 'f32' = 'bf16',
): Tensor {
  const out = Tensor.empty(shape, dtype, device);
  kernels.randomUniform({ out, low: -0.02, high: 0.02, seed: 1, offset: 0, ...inOrder });
  return out;
}

/** x [rows, inputs] to out [rows, outputs] by weights of so many bits; of gates, half as many. */
type Product = (x: Tensor, out: Tensor) => void;

function product(bits: Bits, [outputs, inputs]: readonly [number, number], device: Device) {
  const isGated = outputs === 2 * HIDDEN;
  if (bits === 16) {
    const b = drawTensor([outputs, inputs], device);
    return (a: Tensor, out: Tensor): void =>
      isGated
        ? kernels.gatedLinear({ x: a, weight: b, bias: null, out })
        : kernels.matmul({ a, b, out, ...PLAIN, accumulate: false });
  }
  const group = bits === 8 ? inputs : 128;
  const packed = Tensor.empty([outputs, (inputs * bits) / 32], 'i32', device);
  kernels.fill({ out: packed, value: 0x5a5a5a5a });
  const scale = drawTensor([outputs, inputs / group], device);
  const codes = { packed, scale, zero: null, bias: null, bits, group };
  const run = isGated ? kernels.quantizedGatedLinear : kernels.quantizedLinear;
  return (x: Tensor, out: Tensor): void => run({ x, ...codes, out });
}

/** Tensors that the layers of one forward share. */
function activations(rows: number, device: Device) {
  const list = (values: readonly number[], shape = [values.length]): Tensor =>
    Tensor.from(Int32Array.from(values), { shape, device });
  const each = Array.from({ length: rows }, (_, i) => i);
  const used = Math.ceil(TOKENS / BLOCK);
  return {
    branch: drawTensor([rows, WIDTH], device),
    stream: drawTensor([rows, WIDTH], device),
    normed: drawTensor([rows, WIDTH], device),
    qkv: drawTensor([rows, JOINED], device),
    mixed: drawTensor([rows, HEADS, HEAD], device),
    gated: drawTensor([rows, HIDDEN], device),
    rstd: drawTensor([rows], device, 'f32'),
    cos: drawTensor([TOKENS, HEAD / 2], device, 'f32'),
    sin: drawTensor([TOKENS, HEAD / 2], device, 'f32'),
    positions: list(each.map(() => TOKENS - 1)),
    slots: list(each.map((row) => (row * used + used - 1) * BLOCK + ((TOKENS - 1) % BLOCK))),
    starts: list([...each, rows]),
    lengths: list(each.map(() => TOKENS)),
    tables: list(
      each.flatMap((row) =>
        Array.from({ length: TABLE }, (_, b) => (b < used ? row * used + b : -1)),
      ),
      [rows, TABLE],
    ),
  };
}
type Activations = ReturnType<typeof activations>;

/** The kernels of a layer by name, in their order. */
function layer(rows: number, bits: Bits, on: Activations, device: Device) {
  const weight = drawTensor([WIDTH], device);
  const pool = drawTensor([rows * Math.ceil(TOKENS / BLOCK), 2, KEY_HEADS, BLOCK, HEAD], device);
  const of = (outputs: number, inputs: number): Product => product(bits, [outputs, inputs], device);
  const [qkv, o, gate, down] = [
    of(JOINED, WIDTH),
    of(WIDTH, HEADS * HEAD),
    of(2 * HIDDEN, WIDTH),
    of(WIDTH, HIDDEN),
  ];
  const heads = (first: number, count: number): Tensor =>
    on.qkv.alias([rows, count, HEAD], [JOINED, HEAD, 1], first * HEAD);
  const [q, k, v] = [heads(0, HEADS), heads(HEADS, KEY_HEADS), heads(HEADS + KEY_HEADS, KEY_HEADS)];
  const { branch, stream, normed, rstd, mixed, gated } = on;
  const norm = (): void =>
    kernels.rmsNorm({
      x: branch,
      residual: stream,
      weight,
      sum: stream,
      out: normed,
      rstd,
      eps: 1e-5,
    });
  return {
    norm,
    qkv: () => qkv(normed, on.qkv),
    attention: () => {
      const { cos, sin, positions, slots, tables, starts, lengths } = on;
      const norms = { qNorm: null, kNorm: null, eps: 0 };
      const lists = { positions, slots, tables, starts, lengths };
      const rules = { scale: HEAD ** -0.5, cap: 0, sinks: null, window: 0 };
      kernels.rotaryAttention({
        q,
        k,
        v,
        cos,
        sin,
        pool,
        out: mixed,
        ...norms,
        ...lists,
        ...rules,
      });
    },
    o: () => o(mixed.reshape([rows, HEADS * HEAD]), branch),
    norm2: norm,
    gate_up: () => gate(normed, gated),
    down: () => down(gated, branch),
  };
}
type Layer = ReturnType<typeof layer>;

/** Microseconds per layer in a graph of all layers, without kernel `skip`. */
function microseconds(layers: readonly Layer[], skip: string, device: Device): number {
  const body = (): void => {
    for (const one of layers)
      for (const [name, run] of Object.entries(one)) if (name !== skip) run();
  };
  const graph = Graph.record(device, body, () => undefined);
  const [start, end] = [new Event(device, true), new Event(device, true)];
  const samples = Array.from({ length: 9 }, () => {
    start.record(device.compute);
    graph.launch();
    end.record(device.compute).synchronize();
    return (end.since(start) / layers.length) * 1000;
  });
  graph.dispose();
  return median(samples.slice(2));
}

/** `bench kernels --only layer`: for 1 and 32 texts of 192 tokens, weights of 16, 8 and 4 bits. */
export function layerRows(device: Device, rows: number, bits: Bits): object {
  const on = activations(rows, device);
  const layers = Array.from({ length: LAYERS }, () => layer(rows, bits, on, device));
  const fullValue = microseconds(layers, '', device);
  const names = Object.keys(layers[0] as Layer);
  const round = (x: number): number => Number(x.toFixed(2));
  const shorter = names.map((name) => [
    name,
    round(fullValue - microseconds(layers, name, device)),
  ]);
  return { rows, bits, us: round(fullValue), shorter_without: Object.fromEntries(shorter) };
}
