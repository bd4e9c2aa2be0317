// Tests that replicas on other axes of a mesh train, print and save as the data axis without them,
// bit for bit.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Axis, type MeshOptions, MeshShape } from '../../lib/comm/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import type { LegReport, MeshJob, MeshLeg, MeshReport, Misfit } from './mesh-process.js';

interface Ran {
  reports: MeshReport[];
  /** Lines that each rank printed before its report. */
  lines: string[][];
}

type Wishes = Pick<MeshJob, 'mesh' | 'legs'> & Partial<MeshJob>;

async function runMesh(device: Device, ranks: number, wishes: Wishes): Promise<Ran> {
  const lines: string[][] = Array.from({ length: ranks }, () => []);
  const job: MeshJob = { device: device.kind, axes: [], misfits: [], ...wishes };
  const line = (rank: number, text: string): void => void lines[rank]?.push(text);
  const results = await runRanks('../zero/mesh-process', ranks, { job, line });
  const reports = reportsOf<MeshReport>(results);
  for (const localTexts of lines) localTexts.pop();
  return { reports, lines };
}

/** Digests of all files below `dir` by name; for a manifest, of its parts without dates. */
function filesIn(dir: string): Record<string, string> {
  const names = readdirSync(dir, { recursive: true, withFileTypes: true });
  const found: [string, string][] = [];
  for (const entry of names) {
    if (!entry.isFile()) continue;
    const path = join(entry.parentPath, entry.name);
    const bytes = readFileSync(path);
    const isManifest = entry.name.endsWith('.json');
    const { savedAt: _, sha256: _seal, ...manifest } = isManifest ? JSON.parse(String(bytes)) : {};
    const value = isManifest ? JSON.stringify(manifest) : bytes;
    found.push([path.slice(dir.length + 1), createHash('sha1').update(value).digest('hex')]);
  }
  return Object.fromEntries(found.sort());
}

/** Removes times from the lines. */
const timeless = (lines: readonly string[] = []): string[] =>
  lines.map((line) => line.replace(/, samples\/s=.*$/, ''));

/** Steps after which legs save, in the process. */
const SAVED = 2;

const AXES: Axis[][] = [['pp'], ['dp'], ['sp'], ['tp'], ['sp', 'pp'], ['dp', 'sp'], []];

/** Settings of rank `culprit` that differ, and the error that all ranks throw. */
const misfits = (culprit: number, copyOf: number): [Misfit, RegExp][] => [
  [
    { rank: culprit, seed: 77 },
    new RegExp(
      `^DS_ARGUMENT initialize, random seed: .* on ranks that differ only on pp, sp, tp: ` +
        `1234 as on rank ${copyOf}, got 77 on rank ${culprit}\\. Call seed\\(\\)`,
    ),
  ],
  [
    { rank: culprit, layers: 1 },
    new RegExp(
      `^DS_ARGUMENT initialize, parameter .* on every rank: .* as on rank 0, got .* on rank ${culprit}\\.`,
    ),
  ],
  [
    { rank: culprit, lr: 1e-3 },
    new RegExp(`^DS_CONFIG optimizer\\.params\\.lr: .* as on rank 0, got .* on rank ${culprit}\\.`),
  ],
  [
    { rank: culprit, batch: 2 },
    new RegExp(
      `^DS_COMM engine\\.step: .*the same batches on ranks that differ only on [pst, ]+, ` +
        `got other inputs on rank ${culprit} than on rank ${copyOf} in step 1\\. Distribute samples`,
    ),
  ],
];

interface Comparison {
  /** Data-parallel size of the reference without other axes. */
  data: number;
  ranks: number;
  mesh: MeshOptions;
  stages: readonly MeshLeg['stage'][];
}

const STEPS = 4;
const LATER = 9;

/** Each rank equals its data rank: at the start, after a resume, and in its files. */
async function equalToData(device: Device, expectedComparison: Comparison): Promise<void> {
  const { data, ranks, mesh, stages } = expectedComparison;
  const root = mkdtempSync(join(tmpdir(), 'ds-mesh-'));
  const dir = (name: string): string => join(root, name);
  const legs = (name: string, from: string | null = null): MeshLeg[] =>
    stages.map((stage) => ({ stage, steps: STEPS, dir: dir(name), from }));
  // The last rank is a replica. Its stop requests and changes count like any other's, and its
  // settings must match.
  const culprit = ranks - 1;
  const stopping: MeshLeg = { stage: 1, steps: LATER, dir: dir('stopped'), from: null, culprit };
  const shape = MeshShape.over(ranks, mesh);
  const wrong = misfits(culprit, shape.ranksAlong(culprit, 'pp', 'sp', 'tp')[0] as number);
  try {
    const alone = await runMesh(device, data, { mesh: {}, legs: legs('alone') });
    const meshed = await runMesh(device, ranks, {
      mesh,
      axes: AXES,
      misfits: wrong.map(([misfit]) => misfit),
      legs: [...legs('meshed'), ...legs('resumed', dir('alone')), stopping],
    });
    for (const [rank, report] of meshed.reports.entries()) {
      const place = `rank ${rank} of ${report.mesh}`;
      const expected = alone.reports[shape.coordinates(rank).dp] as MeshReport;
      requireSame(report, expected, place);
      const along = AXES.map((axes) => shape.ranksAlong(rank, ...axes));
      assert.deepEqual(report.gathered, along, place);
      for (const [i, [, message]] of wrong.entries()) {
        assert.match(String(report.refusals[i]), message, place);
      }
    }
    requireSamePrints(meshed, alone);
    requireStopped(meshed.reports);
    assert.deepEqual(filesIn(dir('meshed')), filesIn(dir('alone')));
  } finally {
    rmSync(root, { recursive: true, force: true });
  }
}

/**
 * The first legs start from initial weights, the next ones resume from the reference's checkpoints.
 */
function requireSame({ legs }: MeshReport, { legs: expected }: MeshReport, place: string): void {
  const count = expected.length;
  assert.deepEqual(legs.slice(0, count), expected, place);
  for (const [i, whole] of expected.entries()) {
    const { hashes, losses, norms, steps } = legs[count + i] as LegReport;
    assert.deepEqual(hashes, whole.hashes, `${place}, resumed`);
    assert.deepEqual(losses, whole.losses.slice(SAVED), `${place}, resumed`);
    assert.deepEqual(norms, whole.norms.slice(SAVED), `${place}, resumed`);
    assert.equal(steps, STEPS);
  }
}

function requireSamePrints({ lines }: Ran, alone: Ran): void {
  const [prints, ...others] = alone.lines.map(timeless);
  assert.ok(prints && prints.length > 0);
  assert.deepEqual(timeless(lines[0]).slice(0, prints.length), prints);
  for (const localTexts of [...others, ...lines.slice(1)]) assert.deepEqual(localTexts, []);
}

/** All ranks ended after the same step, before the last one, and have the culprit's change. */
function requireStopped(reports: readonly MeshReport[]): void {
  const stopped = reports.map(({ legs }) => legs.at(-1) as LegReport);
  for (const { steps, hashes } of stopped) {
    assert.ok(steps < LATER, `${steps}`);
    assert.equal(steps, stopped[0]?.steps);
    assert.equal(hashes.length, 2);
    assert.notEqual(hashes[0], hashes[1]);
    assert.deepEqual(hashes, stopped[0]?.hashes);
  }
}

export const cases: Case[] = [
  {
    name: '8 ranks as pp 2 x dp 2 x sp 2 equal 2 data ranks: weights, losses, prints, files, resumed and stopped',
    run: (device) =>
      equalToData(device, {
        data: 2,
        ranks: 8,
        mesh: { pp: 2, dp: 2, sp: 2, tp: 1 },
        stages: [0, 1, 2, 3],
      }),
    gpus: 8,
  },
  {
    name: '2 ranks as tp 2 equal one rank',
    run: (device) => equalToData(device, { data: 1, ranks: 2, mesh: { tp: 2 }, stages: [1, 3] }),
    gpus: 2,
  },
];
