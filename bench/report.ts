// Writes a benchmark's result with everything needed to repeat it: command, commit, host and date.
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { cpus, totalmem } from 'node:os';
import { join } from 'node:path';

import { device, probeGpus } from '../lib/runtime/device.js';
import type { Options } from './main.js';

/** The commit of a checkout, or of the bundle's COMMIT file. */
function commit(): string {
  if (existsSync('COMMIT')) return readFileSync('COMMIT', 'utf8').trim();
  try {
    return execFileSync('git', ['rev-parse', '--short', 'HEAD'], { encoding: 'utf8' }).trim();
  } catch {
    return 'unknown';
  }
}

function host(): object {
  const gpus = probeGpus().deviceCount;
  return {
    cpu: cpus()[0]?.model.trim(),
    cores: cpus().length,
    memory_gib: Math.round(totalmem() / 2 ** 30),
    gpu: gpus > 0 ? `${gpus} x ${device('cuda').info.name}` : null,
    node: process.versions.node,
  };
}

/**
 * Prints the result and writes it to DIR/NAME[-LABEL].json (--out DIR, default bench/results;
 * --label).
 */
export function writeResult(name: string, options: Options, result: object): void {
  const { out = join('bench', 'results'), label, ...rest } = options;
  const words = Object.entries(rest).flatMap(([k, v]) =>
    v === 'true' ? [`--${k}`] : [`--${k}`, v],
  );
  const record = {
    command: ['npm run bench --', name, ...words].join(' '),
    commit: commit(),
    date: new Date().toISOString().slice(0, 10),
    host: host(),
    result,
  };
  const text = JSON.stringify(record, null, 2);
  console.log(text);
  mkdirSync(out, { recursive: true });
  writeFileSync(join(out, `${label ?? name}.json`), `${text}\n`);
}

/** The middle value. */
export function median(values: readonly number[]): number {
  return quantile(values, 0.5);
}

export function quantile(values: readonly number[], q: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] ?? Number.NaN;
}
