// Measures the activation memory of GPT-2 by checkpointing mode, and compares it with the formula.
import * as models from '../lib/models/index.js';
import { type Device, device as findDevice } from '../lib/runtime/device.js';
import type { DType } from '../lib/runtime/dtype.js';
import { scope, seed, Tensor } from '../lib/tensor/index.js';
import * as checkpointing from '../lib/tensor/recompute/index.js';
import type { Options } from './main.js';

type Mode = models.ActivationMode;

export interface ActivationSetup {
  config: models.GPT2Config;
  batch: number;
  seq: number;
  dtype: DType;
  /** For the mode "segments". */
  segments: number;
}

export interface ActivationRow {
  mode: Mode;
  measured: models.ActivationBytes;
  formula: models.ActivationBytes;
}

function modelFor(mode: Mode, { config, segments }: ActivationSetup): models.GPT2 {
  const activationCheckpointing =
    mode === 'none' ? false : mode === 'selective' ? 'selective' : (true as const);
  const numberCheckpoints = mode === 'segments' ? segments : undefined;
  return new models.GPT2({ ...config, activationCheckpointing, numberCheckpoints });
}

/**
 * Bytes of the blocks' activations, without weights and gradients: after the forward, and at the
 * peak of the backward. The head is left out because its logits are larger.
 */
export function measureActivations(
  mode: Mode,
  setup: ActivationSetup,
  device: Device,
): models.ActivationBytes {
  const { batch, seq, dtype, config } = setup;
  seed(1);
  checkpointing.configure({
    cpuCheckpointing: mode === 'cpu',
    keepAttention: mode === 'attention',
  });
  const model = modelFor(mode, setup).to(device, dtype);
  const ids = Int32Array.from({ length: batch * seq }, (_, i) => (i * 7) % config.vocabSize);
  const tokens = Tensor.from(ids, { shape: [batch, seq], device }).keep();
  const step = (): models.ActivationBytes => {
    const before = device.memory.inUse;
    const out = scope(() => model.transformer.call(tokens).sum());
    const held = device.memory.inUse - before;
    device.resetPeaks();
    out.backward();
    out.dispose();
    device.synchronize();
    return { held, peak: device.memory.peakInUse - before };
  };
  try {
    step();
    return step();
  } finally {
    tokens.dispose();
    for (const parameter of model.parameters()) {
      parameter.grad?.dispose();
      parameter.dispose();
    }
    checkpointing.reset();
  }
}

/** The rows of the table, in order of falling memory. */
export function activationTable(setup: ActivationSetup, device: Device): ActivationRow[] {
  const modes: Mode[] = ['none', 'selective', 'segments', 'attention', 'full', 'cpu'];
  return modes.map((mode) => ({
    mode,
    measured: measureActivations(mode, setup, device),
    formula: models.gpt2ActivationBytes(
      setup.config,
      setup,
      mode,
      mode === 'segments' ? setup.segments : undefined,
    ),
  }));
}

/** --model 124M --batch 4 --seq 1024 --segments 4 --precision bf16 --device auto */
export function activationsBench(options: Options): object {
  const device = findDevice(options.device ?? 'auto');
  const name = options.model ?? '124M';
  const setup: ActivationSetup = {
    config: models.GPT2.config(name),
    batch: Number(options.batch ?? 4),
    seq: Number(options.seq ?? 1024),
    segments: Number(options.segments ?? 4),
    dtype: options.precision === 'fp32' ? 'f32' : 'bf16',
  };
  const rows = activationTable(setup, device);
  const mib = (bytes: number): string => (bytes / 2 ** 20).toFixed(1);
  console.log('mode        held MiB (formula)    peak MiB (formula)');
  for (const { mode, measured, formula } of rows) {
    const cells = (['held', 'peak'] as const).map((key) =>
      `${mib(measured[key])} (${mib(formula[key])})`.padEnd(20),
    );
    console.log(`${mode.padEnd(10)}  ${cells.join('  ')}`);
  }
  return { device: device.name, model: name, unit: 'bytes', ...setup, rows };
}
