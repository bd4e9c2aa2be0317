// Loads while a writer replaces the files all the time, and reports loads that mix two states.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, renameSync, rmSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';

import { Checkpoint, WeightFiles } from '../../lib/checkpoint/index.js';
import { writeSafetensors } from '../../lib/checkpoint/safetensors-writer.js';
import { cpu } from '../../lib/runtime/device.js';
import { Tensor } from '../../lib/tensor/tensor.js';
import { writeJson } from './content.js';

const HOOK = join(__dirname, '..', 'support', 'run-typescript.cjs');
const WRITER = join(__dirname, 'replacing-process.ts');

const MIN_STATES = 10;

export interface Loads {
  /** Number of different states that were read. */
  states: number;
  /** Descriptions of loads with tensors, or tensors and state, from different saves. */
  torn: string[];
}

/**
 * Loads a tag that another process saves again and again into `dir`. Errors of a load propagate.
 */
export async function checkpointLoads(dir: string, count: number): Promise<Loads> {
  const writer = spawn(process.execPath, ['-r', HOOK, WRITER, dir], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const ended = once(writer, 'exit');
  try {
    await Promise.race([once(writer.stdout, 'data'), ended]);
    return await repeat(count, async () => {
      const checkpoint = await Checkpoint.open(dir, 't');
      const seen = [checkpoint.state.n as number];
      for (const section of ['model', 'optimizer'] as const) {
        for (const [name, { shape, dtype }] of checkpoint.tensors(section)) {
          const into = Tensor.empty(shape, dtype, cpu());
          await checkpoint.readInto(section, name, into);
          into.toArray().forEach((value, i) => {
            seen.push(value - i);
          });
          into.dispose();
        }
      }
      await checkpoint.requireUnchanged();
      await checkpoint.close();
      return seen;
    });
  } finally {
    writer.stdin.end();
    await ended;
  }
}

/** Loads a folder with two weight files and an index that is replaced again and again. */
export async function folderLoads(dir: string, count: number): Promise<Loads> {
  const path = join(dir, 'weights');
  const publish = async (state: number) => {
    const folder = join(dir, `state${state}`);
    await writeFolder(folder, state);
    symlinkSync(folder, `${path}.next`);
    renameSync(`${path}.next`, path);
    rmSync(join(dir, `state${state - 1}`), { recursive: true, force: true });
  };
  let writing = true;
  await publish(1);
  const openMs = async () => {
    const begin = performance.now();
    await (await WeightFiles.open(path)).close();
    return performance.now() - begin;
  };
  await openMs(); // The first one also loads the program.
  // Opening must succeed in the end, on slow processors and in emulators too.
  const stableMs = Math.max(5, 2 * (await openMs()));
  const replace = async () => {
    for (let state = 2; writing; ++state) {
      await publish(state);
      await pause(stableMs + (state % 7));
    }
  };
  const replaced = replace();
  try {
    return await repeat(count, async () => {
      const files = await WeightFiles.open(path);
      const seen = [files.config?.state as number];
      for (const name of files.tensors.keys()) {
        const values = await files.read(name);
        seen.push(...values.toArray());
        values.dispose();
      }
      await files.close();
      return seen;
    });
  } finally {
    writing = false;
    await replaced;
  }
}

async function writeFolder(folder: string, state: number): Promise<void> {
  mkdirSync(folder);
  const names = ['a.safetensors', 'b.safetensors'];
  const map: Record<string, string> = {};
  for (const [i, file] of names.entries()) {
    const values = Tensor.from(new Float32Array(50).fill(state));
    const source = { name: `t${i}`, dtype: 'f32' as const, shape: [50], values };
    await writeSafetensors(join(folder, file), [source]);
    map[`t${i}`] = file;
    values.dispose();
  }
  writeJson(join(folder, 'config.json'), { state });
  writeJson(join(folder, 'model.safetensors.index.json'), { metadata: { state }, weight_map: map });
}

/** `count` loads, and more if they have met too few states to prove anything. */
async function repeat(count: number, load: () => Promise<number[]>): Promise<Loads> {
  const states = new Set<number>();
  const torn: string[] = [];
  for (let i = 0; i < count || states.size < MIN_STATES; ++i) {
    const seen = new Set(await load());
    for (const state of seen) states.add(state);
    if (seen.size > 1) torn.push(`load ${i} read states ${[...seen].join(' and ')}`);
  }
  return { states: states.size, torn };
}
