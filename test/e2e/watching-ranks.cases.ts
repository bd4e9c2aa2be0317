// Tests logging on two ranks: the comms log, the time of the reduction, and output on rank 0 only.
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { DsConfig } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import { readTrace } from '../profiler/trace-form.js';
import type { Case } from '../support/case.js';
import type { TinyOptions } from './tiny-training.js';
import type { WatchedJob, WatchedReport } from './watching-process.js';

const STEPS = 3;
/** The root's parameters and two layers. */
const UNITS = 3;

interface Watched {
  reports: WatchedReport[];
  /** Lines that each rank printed before its report. */
  lines: string[][];
}

async function watch(
  device: Device,
  more: DsConfig,
  options: Partial<TinyOptions> = {},
  trace?: string,
) {
  const lines: string[][] = [[], []];
  const tiny: TinyOptions = { precision: 'fp32', offload: false, ...options };
  const job: WatchedJob = { device: device.kind, tiny, more, steps: STEPS, trace };
  const line = (rank: number, text: string): void => void lines[rank]?.push(text);
  const results = await runRanks('../e2e/watching-process', 2, { job, line });
  const reports = reportsOf<WatchedReport>(results);
  for (const localTexts of lines) localTexts.pop();
  return { reports, lines } satisfies Watched;
}

function counts({ totals }: WatchedReport): Record<string, number> {
  const sums: Record<string, number> = {};
  for (const { kind, count } of totals ?? []) sums[kind] = (sums[kind] ?? 0) + count;
  return sums;
}

/** Stage 1: each step reduces each unit, gathers norms and gathers each unit. */
async function everyOperation(device: Device): Promise<void> {
  const { reports, lines } = await watch(device, { comms_logger: { enabled: true } });
  for (const report of reports) {
    const { reduceScatter, allGather } = counts(report);
    assert.equal(reduceScatter, UNITS * STEPS);
    assert.equal(allGather, (UNITS + 1) * STEPS);
  }
  const [head, ...rows] = lines[0] as string[];
  assert.match(head as string, /^Comm\. Op +Message Size +Count /);
  assert.ok(rows.some((row) => /^reduceScatter +\S+ [KM]?B +\d+ /.test(row)));
  assert.deepEqual(lines[1], []);
}

async function someOperations(device: Device): Promise<void> {
  const section = { enabled: true, prof_all: false, prof_ops: ['reduce_scatter_tensor' as const] };
  const quiet = await watch(device, { comms_logger: section });
  assert.deepEqual(counts(quiet.reports[0] as WatchedReport), { reduceScatter: UNITS * STEPS });
  const loud = await watch(device, { comms_logger: { ...section, verbose: true } });
  const logged = (loud.lines[0] as string[]).filter((text) => text.includes('(gradient of '));
  assert.equal(logged.length, UNITS * STEPS);
  assert.match(logged[0] as string, /^reduceScatter .* ms, algbw .* busbw .* Gbps \(gradient of /);
  assert.deepEqual(loud.lines[1], []);
}

async function switchedOff(device: Device): Promise<void> {
  const { reports, lines } = await watch(device, { comms_logger: { enabled: false } });
  for (const { totals } of reports) assert.equal(totals, null);
  assert.deepEqual(lines, [[], []]);
}

/** The reduction is inside backward at every stage, with and without overlap. */
async function reductionIsTimed(device: Device): Promise<void> {
  for (const zero of [
    { stage: 0 as const, overlap_comm: false },
    { stage: 2 as const, overlap_comm: true },
  ]) {
    const { reports, lines } = await watch(device, { wall_clock_breakdown: true }, { zero });
    for (const { phases } of reports) {
      const { reduce = 0, backward = 0 } = phases ?? {};
      assert.ok(reduce > 0 && reduce < backward, `${JSON.stringify(zero)}: ${reduce}, ${backward}`);
    }
    assert.equal(lines[0]?.length, STEPS);
    assert.deepEqual(lines[1], []);
  }
}

/** Each rank writes a trace file that shows the transfer of every gradient, norm and weight. */
async function traces(device: Device): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'ds-traced-ranks-'));
  await watch(device, {}, {}, join(folder, 'trace.json'));
  assert.equal(readdirSync(folder).sort().join(), 'trace.json,trace.rank1.json');
  const traced = ['trace.json', 'trace.rank1.json'].map((name) => readTrace(join(folder, name)));
  rmSync(folder, { recursive: true });
  traced.forEach((events, rank) => {
    const named = events.map(({ name }) => name);
    const count = (kind: string): number => named.filter((name) => name.startsWith(kind)).length;
    assert.equal(count('reduceScatter'), UNITS * STEPS);
    // The last weight gathers of a step may still run when it ends.
    const gathers = count('allGather');
    assert.ok(gathers >= (UNITS + 1) * STEPS - UNITS && gathers <= (UNITS + 1) * STEPS);
    assert.ok(events.every(({ pid }) => Math.floor(pid / 10) === rank));
  });
}

async function firstRankPrints(device: Device): Promise<void> {
  const more: DsConfig = {
    memory_breakdown: true,
    dump_state: true,
    steps_per_print: 1,
    flops_profiler: { enabled: true, detailed: false },
    activation_checkpointing: { profile: true },
    zero_allow_untested_optimizer: true,
  };
  const { lines, reports } = await watch(device, more, { checkpointing: true });
  const text = (lines[0] as string[]).join('\n');
  assert.match(text, /batch +6 = 3 x 1 accumulation steps x 2 ranks/);
  assert.equal(text.match(/^memory before backward/gm)?.length, STEPS);
  assert.equal(text.match(/^step=\d+, skipped=0/gm)?.length, STEPS);
  const segments =
    /^step=\d+, checkpoints \(ms\), forward \+ recompute \| 0: .* \| 1: \d+\.\d\d \+/gm;
  assert.equal(text.match(segments)?.length, STEPS);
  assert.match(text, /Flops Profiler/i);
  assert.match(String(reports[0]?.notices), /zero_allow_untested_optimizer has no effect/);
  assert.deepEqual([lines[1], reports[1]?.notices], [[], []]);
}

/**
 * The logged loss is the mean over both ranks and both micro-batches, of a step that has completed.
 */
async function lossOfAllRanks(device: Device): Promise<void> {
  const { lines, reports } = await watch(device, { steps_per_print: 1 }, { accumulation: 2 });
  const [zero, one] = reports.map(({ losses }) => losses) as [number[], number[]];
  assert.notDeepEqual(zero, one);
  const expected = Array.from({ length: STEPS }, (_, step) => {
    const all = [zero, one].flatMap((losses) => losses.slice(2 * step, 2 * step + 2));
    return all.reduce((a, b) => a + b) / 4;
  });
  const reported = (lines[0] as string[]).map((line) => Number(/ loss=([\d.]+)/.exec(line)?.[1]));
  assert.equal(reported.length, STEPS);
  reported.forEach((loss, i) => {
    const expectedValue = expected[i] as number;
    assert.ok(
      Math.abs(loss - expectedValue) < 1e-4 * expectedValue,
      `${loss}, expected ${expectedValue}`,
    );
  });
}

export const cases: Case[] = [
  { name: 'comms_logger: every operation, printed by logSummary() on rank 0', run: everyOperation },
  { name: 'comms_logger: prof_ops and verbose', run: someOperations },
  { name: 'comms_logger: enabled: false is off', run: switchedOff },
  { name: 'wall_clock_breakdown: the reduction is a part of backward', run: reductionIsTimed },
  { name: 'two ranks watch, rank 0 prints', run: firstRankPrints },
  { name: 'a trace of each rank includes the transfers between ranks', run: traces },
  { name: 'steps_per_print: the loss is that of all ranks', run: lossOfAllRanks },
].map((test) => ({ ...test, gpus: 2 }));
