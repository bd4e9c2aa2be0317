// One rank that trains the heads of every family split over ranks, and reports the losses.
import { initDistributed, type MeshOptions } from '../../lib/comm/index.js';
import { type DsConfig, initialize } from '../../lib/index.js';
import { headModel, MATRIX, stepsOfHead, trainingConfig } from './head-rows.js';

/** The one argument, as JSON. */
export interface HeadMatrixJob {
  mesh: MeshOptions;
  config: Partial<DsConfig>;
}

/** Losses by head, or the message of an error. */
export type HeadMatrixReport = Record<string, number[] | string>;

async function main({ mesh, config }: HeadMatrixJob): Promise<void> {
  const world = await initDistributed({ mesh, device: 'cpu' });
  const report: HeadMatrixReport = {};
  for (const row of MATRIX) {
    try {
      const { engine } = await initialize({
        model: await headModel(row),
        config: trainingConfig(config),
      });
      report[row.name] = stepsOfHead(engine, row);
      engine.destroy();
    } catch (error) {
      report[row.name] = (error as Error).message;
    }
  }
  await world.destroy();
  console.log(JSON.stringify(report));
}

if (process.argv[2]) void main(JSON.parse(process.argv[2]) as HeadMatrixJob);
