// Checkpoints: round trips, damage of every kind, full disks, and saves killed at random moments.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';

import {
  type CheckpointContent,
  listTags,
  openCheckpoint,
  saveCheckpoint,
} from '../../lib/checkpoint/index.js';
import { Buffer as DeviceBuffer } from '../../lib/runtime/buffer.js';
import { cpu } from '../../lib/runtime/device.js';
import type { DType } from '../../lib/runtime/dtype.js';
import { Tensor } from '../../lib/tensor/tensor.js';

const MODEL = 'mp_rank_00_model_states.safetensors';
const OPTIMIZER = 'zero_pp_rank_0_mp_rank_00_optim_states.safetensors';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-checkpoint-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

function content(fill: number, state: CheckpointContent['state'] = { n: fill }): CheckpointContent {
  const values = Float32Array.from({ length: 1000 }, (_, i) => fill + i);
  const tensor = (name: string) => ({ name, tensor: Tensor.from(values, { shape: [10, 100] }) });
  return {
    modelTensors: [tensor('w')],
    optimizerTensors: [tensor('w.fp32'), tensor('w.exp_avg')],
    state,
    saveLatest: true,
  };
}

async function valuesOf(from: string, tag?: string): Promise<Record<string, number[]>> {
  const checkpoint = await openCheckpoint(from, tag);
  const out: Record<string, number[]> = {};
  for (const name of checkpoint.names()) {
    const { shape, dtype } = checkpoint.tensor(name);
    const into = Tensor.empty(shape, dtype, cpu());
    await checkpoint.readInto(name, into);
    out[name] = into.toArray();
  }
  return out;
}

function refusal(message: RegExp, code = 'DS_CHECKPOINT') {
  return expect.objectContaining({ code, message: expect.stringMatching(message) });
}

describe('round trips', () => {
  test('tensors of every dtype and shape, state and names come back as they were', async () => {
    const dtypes: DType[] = ['f32', 'i32', 'i64', 'u8', 'f64'];
    const tensors = dtypes.flatMap((dtype) =>
      [[], [3], [5, 7], [0, 2]].map((shape) => {
        const count = shape.reduce((a, b) => a * b, 1);
        const values = Array.from({ length: count }, (_, i) => i + 1);
        const data = new Float64Array(values);
        return { name: `${dtype}[${shape}]`, tensor: Tensor.from(data, { shape, dtype }) };
      }),
    );
    const state = { step: 3, nested: { list: [1, 'two', null, true], e: 1e-300 } };
    const half = tensors.length / 2;
    const path = await saveCheckpoint(dir, 'global_step3', {
      modelTensors: tensors.slice(0, half),
      optimizerTensors: tensors.slice(half),
      state,
      saveLatest: true,
    });
    expect(path).toBe(join(dir, 'global_step3'));
    const checkpoint = await openCheckpoint(dir);
    expect(checkpoint).toMatchObject({ path, tag: 'global_step3', state });
    expect(checkpoint.names().sort()).toEqual(tensors.map(({ name }) => name).sort());
    const values = await valuesOf(dir);
    for (const { name, tensor } of tensors) {
      expect(checkpoint.tensor(name).shape).toEqual(tensor.shape);
      expect(values[name]).toEqual(tensor.toArray());
    }
  });

  test('flat views of pinned memory are saved under a shape and read back into one', async () => {
    const pinned = DeviceBuffer.allocatePinned(cpu(), 4096);
    const flat = new Tensor(pinned, 'f32', [12], undefined, 100);
    flat.buffer.write(
      400,
      Float32Array.from({ length: 12 }, (_, i) => i * i),
    );
    await saveCheckpoint(dir, 't', {
      modelTensors: [{ name: 'w', tensor: flat, shape: [3, 4] }],
      optimizerTensors: [],
      state: {},
      saveLatest: false,
    });
    const checkpoint = await openCheckpoint(dir, 't');
    expect(checkpoint.tensor('w').shape).toEqual([3, 4]);
    const other = new Tensor(DeviceBuffer.allocatePinned(cpu(), 4096), 'f32', [12], undefined, 7);
    await checkpoint.readInto('w', other);
    expect(other.toArray()).toEqual(flat.toArray());
  });

  test('the files are DeepSpeed-like, and the payload is a safetensors file', async () => {
    await saveCheckpoint(dir, 't', content(0));
    expect(readdirSync(dir).sort()).toEqual(['latest', 't']);
    expect(readFileSync(join(dir, 'latest'), 'utf8')).toBe('t');
    expect(readdirSync(join(dir, 't')).sort()).toEqual(['manifest.json', MODEL, OPTIMIZER]);
    const bytes = readFileSync(join(dir, 't', MODEL));
    const length = Number(bytes.readBigUInt64LE(0));
    expect((8 + length) % 64).toBe(0);
    expect(JSON.parse(bytes.toString('utf8', 8, 8 + length)).w).toEqual({
      dtype: 'F32',
      shape: [10, 100],
      data_offsets: [0, 4000],
    });
    expect(bytes.readFloatLE(8 + length + 4 * 41)).toBe(41);
  });

  test('saving a tag again replaces it; latest moves only when asked to', async () => {
    await saveCheckpoint(dir, 'a', content(1));
    await saveCheckpoint(dir, 'b', { ...content(2), saveLatest: false });
    expect((await openCheckpoint(dir)).tag).toBe('a');
    await saveCheckpoint(dir, 'a', content(3));
    expect((await valuesOf(dir)).w?.[0]).toBe(3);
    expect(await listTags(dir)).toEqual(['a', 'b']);
    expect(readdirSync(dir).sort()).toEqual(['a', 'b', 'latest']);
  });
});

describe('refusals', () => {
  test.each(['', '.', '..', 'a/b', '../a', '.hidden', 'latest', 'a\0b'])('tag %j', async (tag) => {
    await expect(saveCheckpoint(dir, tag, content(1))).rejects.toEqual(refusal(/checkpoint tag/));
  });

  test('a missing folder, tag or latest says what there is', async () => {
    await expect(openCheckpoint(join(dir, 'no'))).rejects.toEqual(refusal(/ENOENT/));
    await expect(openCheckpoint(dir)).rejects.toEqual(refusal(/without checkpoints/));
    await saveCheckpoint(dir, 'step10', { ...content(1), saveLatest: false });
    await saveCheckpoint(dir, 'step9', { ...content(1), saveLatest: false });
    await expect(openCheckpoint(dir)).rejects.toEqual(
      refusal(/"latest", got the tags step9, step10/),
    );
    await expect(openCheckpoint(dir, 'step8')).rejects.toEqual(refusal(/"step8".*step9, step10/));
  });

  test('a folder without a manifest is half a checkpoint', async () => {
    await saveCheckpoint(dir, 't', content(1));
    rmSync(join(dir, 't', 'manifest.json'));
    await expect(openCheckpoint(dir)).rejects.toEqual(refusal(/complete checkpoint/));
  });

  test('a tensor name given twice is refused before anything is written', async () => {
    const twice = content(1);
    await expect(
      saveCheckpoint(dir, 't', {
        ...twice,
        optimizerTensors: [...twice.optimizerTensors, ...twice.modelTensors],
      }),
    ).rejects.toEqual(refusal(/"w" twice/));
    expect(readdirSync(dir)).toEqual([]);
  });

  test('a tensor of another shape, dtype or name is not filled', async () => {
    await saveCheckpoint(dir, 't', content(1));
    const checkpoint = await openCheckpoint(dir);
    const into = (shape: number[], dtype: DType) => Tensor.empty(shape, dtype, cpu());
    await expect(checkpoint.readInto('w', into([100, 10], 'f32'))).rejects.toEqual(
      refusal(/w: expected \[100, 10\] f32, got \[10, 100\] f32/),
    );
    await expect(checkpoint.readInto('w', into([10, 100], 'i32'))).rejects.toEqual(refusal(/i32/));
    await expect(checkpoint.readInto('v', into([1], 'f32'))).rejects.toEqual(refusal(/"v"/));
  });

  test('any flipped byte of any file is found, and the file is named', async () => {
    await saveCheckpoint(dir, 't', content(1));
    for (const name of [MODEL, OPTIMIZER, 'manifest.json']) {
      const path = join(dir, 't', name);
      const bytes = readFileSync(path);
      for (let k = 0; k < 25; ++k) {
        const at = Math.floor(((bytes.length - 1) * k) / 24.5);
        const damaged = Buffer.from(bytes);
        damaged[at] = (damaged[at] as number) ^ 4;
        if (name === 'manifest.json' && isSameJson(bytes, damaged)) continue;
        writeFileSync(path, damaged);
        await expect(openCheckpoint(dir)).rejects.toEqual(refusal(new RegExp(name)));
      }
      writeFileSync(path, bytes);
    }
    await openCheckpoint(dir);
  });

  test.each([0, 5, 200, 3999])('a file cut to %d bytes is found', async (bytes) => {
    await saveCheckpoint(dir, 't', content(1));
    truncateSync(join(dir, 't', OPTIMIZER), bytes);
    await expect(openCheckpoint(dir)).rejects.toEqual(
      refusal(new RegExp(`${OPTIMIZER}.*${bytes}`)),
    );
  });
});

function isSameJson(a: Buffer, b: Buffer): boolean {
  try {
    return JSON.stringify(JSON.parse(`${a}`)) === JSON.stringify(JSON.parse(`${b}`));
  } catch {
    return false;
  }
}

const HOOK = join(__dirname, '..', 'support', 'run-typescript.cjs');
const SAVER = join(__dirname, 'save-process.ts');

function saver(...args: string[]): ChildProcess {
  return spawn(process.execPath, ['-r', HOOK, SAVER, dir, ...args]);
}

/** Waits for the first checkpoint, then kills the process `delay` milliseconds later. */
async function killDuringSaves(child: ChildProcess, delay: number): Promise<void> {
  const ended = new Promise((resolve) => child.once('exit', resolve));
  await new Promise((resolve) => child.stdout?.once('data', resolve));
  await new Promise((resolve) => setTimeout(resolve, delay));
  child.kill('SIGKILL');
  await ended;
}

/** Opens the latest checkpoint and checks that it is of one piece. Returns its number. */
async function requireWhole(): Promise<number> {
  const { state } = await openCheckpoint(dir);
  const values = await valuesOf(dir);
  expect(Object.keys(values).sort()).toEqual(['a', 'b', 'c']);
  for (const items of Object.values(values)) {
    expect(items.every((item) => item === state.n)).toBe(true);
  }
  return state.n as number;
}

describe('kill -9', () => {
  test.each([['again'], ['each']])(
    'at random moments of saving tag "%s", 10 times',
    async (tag) => {
      let last = 0;
      for (let round = 0; round < 10; ++round) {
        await killDuringSaves(saver(tag, '3', String(last)), Math.floor(Math.random() * 40));
        const n = await requireWhole();
        expect(n).toBeGreaterThanOrEqual(last);
        last = n;
      }
      await saveCheckpoint(dir, 'end', content(1));
      expect(readdirSync(dir).filter((name) => name.startsWith('.'))).toEqual([]);
    },
    120_000,
  );

  test('between the two renames: the old checkpoint is found, then moved back', async () => {
    await saveCheckpoint(dir, 't', content(7));
    const host = hostname().replace(/[^\w.]/g, '_');
    const dead = spawnSync(process.execPath, ['-e', '']).pid;
    renameSync(join(dir, 't'), join(dir, `.old-t-${host}~${dead}~0123456789ab`));
    mkdirSync(join(dir, `.tmp-t-${host}~${dead}~0123456789ab`));
    expect((await valuesOf(dir)).w?.[0]).toBe(7);
    await saveCheckpoint(dir, 'u', content(8));
    expect(readdirSync(dir).sort()).toEqual(['latest', 't', 'u']);
    expect((await valuesOf(dir, 't')).w?.[0]).toBe(7);
  });

  test('what a live process is writing is left alone', async () => {
    const host = hostname().replace(/[^\w.]/g, '_');
    const names = [`.tmp-t-${host}~${process.ppid}~ab`, `.tmp-t-elsewhere~1~ab`];
    for (const name of names) mkdirSync(join(dir, name));
    await saveCheckpoint(dir, 'u', content(8));
    expect(readdirSync(dir).sort()).toEqual([...names, 'latest', 'u'].sort());
  });
});

test('a disk that is full leaves the old checkpoint and nothing else', async () => {
  await saveCheckpoint(dir, 'again', content(7));
  // A limit of 512 KiB per file stands for the full disk: the write fails halfway.
  const command = `ulimit -f 512; exec "$0" -r "$1" "$2" "$3" again 3 1`;
  const args = ['-c', command, process.execPath, HOOK, SAVER, dir];
  const { status, stderr } = spawnSync('bash', args, { encoding: 'utf8' });
  expect(stderr).toMatch(/^DS_IO write .*errno 27.*ulimit -f/);
  expect(status).toBe(1);
  expect(readdirSync(dir).sort()).toEqual(['again', 'latest']);
  expect((await valuesOf(dir)).w?.[0]).toBe(7);
});

test('a folder that cannot be made is a typed error', async () => {
  writeFileSync(join(dir, 'file'), '');
  await expect(saveCheckpoint(join(dir, 'file', 'x'), 't', content(1))).rejects.toEqual(
    refusal(/ENOTDIR/, 'DS_IO'),
  );
});

test('a checkpoint that was copied elsewhere opens there', async () => {
  await saveCheckpoint(dir, 't', content(5));
  const copy = join(dir, 'copy');
  mkdirSync(copy);
  cpSync(join(dir, 't'), join(copy, 'renamed'), { recursive: true });
  expect((await valuesOf(copy, 'renamed')).w?.[0]).toBe(5);
  expect(existsSync(join(copy, 'latest'))).toBe(false);
});
