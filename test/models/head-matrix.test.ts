// Tests the heads of every family in every way to train and to keep a model. A new family needs no
// line here: the folders of golden values are the rows.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type DsConfig, initialize, type nn, peft } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { noGrad } from '../../lib/tensor/index.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { HeadMatrixJob, HeadMatrixReport } from './head-matrix-process.js';
import {
  type HeadRow,
  headGolden,
  headModel,
  inputsOf,
  MATRIX,
  releaseInputs,
  stepsOfHead,
  trainingConfig,
} from './head-rows.js';

let home: string;
beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), 'ds-heads-'));
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

async function engineOf(model: nn.models.TaskModel, more: Partial<DsConfig> = {}) {
  const { engine } = await initialize({ model, config: trainingConfig(more), device: 'cpu' });
  return engine;
}

function outputsOf(model: nn.models.TaskModel, row: HeadRow): number[] {
  const tensors = inputsOf(headGolden(row).inputs, cpu());
  const out = noGrad(() => model.call(...tensors).contiguous());
  const values = out.toArray();
  out.dispose();
  releaseInputs(tensors);
  return values;
}

const baselines = new Map<string, number[]>();

/** Losses of one rank at stage 0. */
async function baseline(row: HeadRow): Promise<number[]> {
  const known = baselines.get(row.name);
  if (known) return known;
  const engine = await engineOf(await headModel(row));
  const losses = stepsOfHead(engine, row);
  engine.destroy();
  baselines.set(row.name, losses);
  return losses;
}

describe.each(MATRIX.map((row) => [row.name, row] as const))('%s', (name, row) => {
  test('stage 3 with offload of weights and state trains as stage 0', async () => {
    const offload = { device: 'cpu' } as const;
    const zero = { stage: 3, offload_optimizer: offload, offload_param: offload } as const;
    const engine = await engineOf(await headModel(row), { zero_optimization: zero });
    expect(stepsOfHead(engine, row)).toEqual(await baseline(row));
    engine.destroy();
  });

  test('recomputed activations give the same losses', async () => {
    const engine = await engineOf(await headModel(row, { activationCheckpointing: true }));
    expect(stepsOfHead(engine, row)).toEqual(await baseline(row));
    engine.destroy();
  });

  test('a run that resumes continues with the same losses', async () => {
    const dir = join(home, `${name}-run`);
    const first = await engineOf(await headModel(row));
    stepsOfHead(first, row, 0, 2);
    await first.saveCheckpoint(dir);
    first.destroy();
    const second = await engineOf(await headModel(row));
    await second.loadCheckpoint(dir);
    expect(stepsOfHead(second, row, 2)).toEqual((await baseline(row)).slice(2));
    second.destroy();
  });

  test('a saved folder gives the same outputs and description', async () => {
    const dir = join(home, `${name}-saved`);
    const model = await headModel(row);
    await model.save(dir);
    const read = await headModel({ ...row, dir });
    expect(read.config).toEqual(model.config);
    expect(read.describe().config.architectures).toEqual(model.describe().config.architectures);
    expect(outputsOf(read, row)).toEqual(outputsOf(model, row));
  });

  test('adapters train beside the head, and merge into the weights', async () => {
    const model = await headModel(row);
    const heads = row.task === 'masked-lm' ? [] : model.headModules();
    peft.addLora(model, { r: 2, loraAlpha: 8, modulesToSave: heads });
    const engine = await engineOf(model, { optimizer: { type: 'AdamW', params: { lr: 0.05 } } });
    const losses = Array.from({ length: 5 }, () => stepsOfHead(engine, row, 0, 1)[0] as number);
    engine.destroy();
    expect(losses.at(-1)).toBeLessThan(losses[0] as number);
    const after = outputsOf(model, row);
    peft.merge(model);
    outputsOf(model, row).forEach((value, i) => {
      expect(Math.abs(value - (after[i] as number))).toBeLessThan(1e-3);
    });
  });
});

describe('two ranks train every head like one rank', () => {
  const ways: Record<string, HeadMatrixJob> = {
    'tensor parallelism': { mesh: { tp: 2 }, config: { tensor_parallel: { autotp_size: 2 } } },
    'tensor parallelism at ZeRO stage 3': {
      mesh: { tp: 2 },
      config: { tensor_parallel: { autotp_size: 2 }, zero_optimization: { stage: 3 } },
    },
    'the same batches at ZeRO stage 3': {
      mesh: { dp: 2 },
      config: { zero_optimization: { stage: 3 } },
    },
  };
  test.each(Object.entries(ways))('%s', async (_, job) => {
    const environment = { DEEPSPEED_TIMEOUT: '2' };
    const results = await runRanks('../models/head-matrix-process', 2, { job, environment });
    const reports = reportsOf<HeadMatrixReport>(results);
    for (const row of MATRIX) {
      const expected = await baseline(row);
      for (const report of reports) {
        const losses = report[row.name] ?? 'nothing';
        expect(`${row.name}: ${typeof losses === 'string' ? losses : ''}`).toBe(`${row.name}: `);
        (losses as number[]).forEach((loss, i) => {
          expect(Math.abs(loss - (expected[i] as number))).toBeLessThan(2e-5);
        });
      }
    }
  });
});
