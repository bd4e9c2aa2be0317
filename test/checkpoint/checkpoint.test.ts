// Tests checkpoints of one rank: round trips, retention, every kind of damage, and leftovers of
// killed saves.
import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Claim } from '../../lib/checkpoint/claim.js';
import { Checkpoint, listTags, type Shard, saveCheckpoint } from '../../lib/checkpoint/index.js';
import { Buffer as DeviceBuffer } from '../../lib/runtime/buffer.js';
import { cpu } from '../../lib/runtime/device.js';
import type { DType } from '../../lib/runtime/dtype.js';
import { Tensor } from '../../lib/tensor/tensor.js';
import type { JsonValue } from '../../types/json.js';
import { content, contentOf, save, valuesOf } from './content.js';

const MODEL = 'mp_rank_00_model_states.safetensors';
const OPTIMIZER = 'zero_pp_rank_0_mp_rank_00_optim_states.safetensors';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-checkpoint-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

/** The owner of a claim after its save was killed. */
async function deadOwner(): Promise<string> {
  const claim = await Claim.take(dir);
  await claim.leave();
  return claim.owner;
}

function refusal(message: RegExp, code = 'DS_CHECKPOINT') {
  return expect.objectContaining({ code, message: expect.stringMatching(message) });
}

describe('round trips', () => {
  test('restores tensors of every dtype and shape, state and names', async () => {
    const dtypes: DType[] = ['f32', 'i32', 'i64', 'u8', 'f64'];
    const tensors = dtypes.flatMap((dtype) =>
      [[], [3], [5, 7], [0, 2]].map((shape) => {
        const count = shape.reduce((a, b) => a * b, 1);
        const values = Array.from({ length: count }, (_, i) => i + 1);
        const data = new Float64Array(values);
        const tensor = Tensor.from(data, { shape, dtype });
        return { name: `${dtype}[${shape}]`, shape, tensor };
      }),
    );
    const state = { step: 3, nested: { list: [1, 'two', null, true], e: 1e-300 } };
    const half = tensors.length / 2;
    const parts = [tensors.slice(0, half), tensors.slice(half)] as const;
    const path = await save(dir, 'global_step3', contentOf(...parts, state));
    expect(path).toBe(join(dir, 'global_step3'));
    const checkpoint = await Checkpoint.open(dir);
    expect(checkpoint).toMatchObject({ path, tag: 'global_step3', state });
    expect([...checkpoint.tensors('model').keys()]).toEqual(parts[0].map(({ name }) => name));
    expect([...checkpoint.tensors('optimizer').keys()]).toEqual(parts[1].map(({ name }) => name));
    const values = await valuesOf(dir);
    for (const { name, tensor } of tensors) expect(values[name]).toEqual(tensor.toArray());
  });

  test('flat views of pinned memory are saved under a shape and read back into one', async () => {
    const pinned = DeviceBuffer.allocatePinned(cpu(), 4096);
    const flat = new Tensor(pinned, 'f32', [12], undefined, 100);
    flat.buffer.write(
      400,
      Float32Array.from({ length: 12 }, (_, i) => i * i),
    );
    const shards = [{ name: 'w', tensor: flat, shape: [3, 4] }];
    await save(dir, 't', contentOf(shards, []), { saveLatest: false });
    const checkpoint = await Checkpoint.open(dir, 't');
    expect(checkpoint.tensors('model').get('w')?.shape).toEqual([3, 4]);
    const other = new Tensor(DeviceBuffer.allocatePinned(cpu(), 4096), 'f32', [12], undefined, 7);
    await checkpoint.readInto('model', 'w', other);
    expect(other.toArray()).toEqual(flat.toArray());
  });

  test('the files are DeepSpeed-like, and the payload is a safetensors file', async () => {
    await save(dir, 't', content(0));
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

  test('saving a tag again replaces it; latest moves only on request', async () => {
    await save(dir, 'a', content(1));
    await save(dir, 'b', content(2), { saveLatest: false });
    expect((await Checkpoint.open(dir)).tag).toBe('a');
    await save(dir, 'a', content(3));
    expect((await valuesOf(dir)).w?.[0]).toBe(3);
    expect(await listTags(dir)).toEqual(['a', 'b']);
    expect(readdirSync(dir).sort()).toEqual(['a', 'b', 'latest']);
  });
});

describe('retention', () => {
  test('keepLast keeps the newest checkpoints and all other files', async () => {
    mkdirSync(join(dir, 'mine'));
    for (const n of [1, 2, 3]) await save(dir, `step${n}`, content(n));
    await save(dir, 'step4', content(4), { keepLast: 2 });
    expect(readdirSync(dir).sort()).toEqual(['latest', 'mine', 'step3', 'step4']);
    expect((await valuesOf(dir, 'step3')).w?.[0]).toBe(3);
  });

  test('keepLast keeps the tag in latest and the checkpoint just saved', async () => {
    for (const n of [1, 2, 3]) await save(dir, `step${n}`, content(n), { saveLatest: n === 1 });
    await save(dir, 'step4', content(4), { saveLatest: false, keepLast: 1 });
    expect(await listTags(dir)).toEqual(['step1', 'step4']);
    expect((await valuesOf(dir)).w?.[0]).toBe(1);
  });

  test('of checkpoints with the same time, keepLast keeps the last by name', async () => {
    const clock = jest.spyOn(Date, 'now').mockReturnValue(Date.now());
    for (const n of [1, 2, 3, 4]) await save(dir, `step${n}`, content(n));
    await save(dir, 'step5', content(5), { keepLast: 2 });
    clock.mockRestore();
    expect(await listTags(dir)).toEqual(['step4', 'step5']);
  });

  test('keepLast keeps the checkpoint just saved even if the clock went back', async () => {
    await save(dir, 'step1', content(1));
    const clock = jest.spyOn(Date, 'now').mockReturnValue(Date.now() - 3600_000);
    await save(dir, 'step2', content(2), { saveLatest: false, keepLast: 1 });
    clock.mockRestore();
    expect(await listTags(dir)).toEqual(['step1', 'step2']);
  });

  test.each([0, -1, 1.5, Number.NaN])('keeping %d is refused', async (keepLast) => {
    const saving = save(dir, 't', content(1), { keepLast });
    await expect(saving).rejects.toEqual(refusal(/keepLast/, 'DS_ARGUMENT'));
    expect(readdirSync(dir)).toEqual([]);
  });

  test('a tag that a dead process was deleting stays deleted', async () => {
    await save(dir, 't', content(1));
    renameSync(join(dir, 't'), join(dir, `.gone-t-${await deadOwner()}`));
    await expect(Checkpoint.open(dir, 't')).rejects.toEqual(refusal(/without checkpoints/));
    await save(dir, 'u', content(2));
    expect(readdirSync(dir).sort()).toEqual(['latest', 'u']);
  });
});

describe('refusals', () => {
  const bad = [
    '',
    '.',
    '..',
    'a/b',
    '../a',
    '.hidden',
    'latest',
    'a\0b',
    ' a',
    'a ',
    'a\n',
    '\ufeffa',
  ];

  test.each([...bad, 'a\nb', 'é'.repeat(101), '\ud800', 5 as unknown as string])(
    'tag %j',
    async (tag) => {
      await expect(save(dir, tag, content(1))).rejects.toEqual(refusal(/checkpoint tag/));
    },
  );

  test('errors of a missing folder, tag or latest list the existing ones', async () => {
    await expect(Checkpoint.open(join(dir, 'no'))).rejects.toEqual(refusal(/ENOENT/));
    await expect(Checkpoint.open(dir)).rejects.toEqual(refusal(/without checkpoints/));
    await save(dir, 'step10', content(1), { saveLatest: false });
    await save(dir, 'step9', content(1), { saveLatest: false });
    await expect(Checkpoint.open(dir)).rejects.toEqual(
      refusal(/"latest", got the tags step9, step10/),
    );
    await expect(Checkpoint.open(dir, 'step8')).rejects.toEqual(refusal(/"step8".*step9, step10/));
  });

  test('errors name the right folder for a checkpoint, and for a folder of such folders', async () => {
    await save(join(dir, 'run'), 'step10', content(1));
    await expect(Checkpoint.open(join(dir, 'run', 'step10'))).rejects.toEqual(
      refusal(/got a checkpoint itself\. Give the folder .*run, and the tag step10\./),
    );
    const message = /"latest", got folders with checkpoints in it\. Give one of them: .*run\./;
    await expect(Checkpoint.open(dir)).rejects.toEqual(refusal(message));
    await expect(Checkpoint.open(dir, 'run')).rejects.toEqual(refusal(/run.*manifest/));
  });

  test('a folder without a manifest is half a checkpoint', async () => {
    await save(dir, 't', content(1));
    rmSync(join(dir, 't', 'manifest.json'));
    await expect(Checkpoint.open(dir)).rejects.toEqual(refusal(/complete checkpoint/));
  });

  test.each([
    ['twice', 'w.fp32', /"w.fp32" twice/],
    ['like that of a part', 'w[0:5]', /\[from:to\]/],
    ['that the catalog lacks', 'v', /a tensor of this model/],
  ])('a tensor named %s is refused, and nothing is left', async (_name, extra, message) => {
    const { optimizer, ...rest } = content(1);
    const [first] = optimizer as [Shard];
    const more = { ...rest, optimizer: [...optimizer, { ...first, name: extra }] };
    await expect(save(dir, 't', more)).rejects.toEqual(refusal(message));
    expect(readdirSync(dir)).toEqual([]);
  });

  test('a tensor that no rank has saved is refused', async () => {
    const { optimizer, ...rest } = content(1);
    const less = { ...rest, optimizer: optimizer.slice(1) };
    await expect(save(dir, 't', less)).rejects.toEqual(refusal(/w.fp32: expected its 1000/));
    expect(readdirSync(dir)).toEqual([]);
  });

  test('a tensor of another shape, dtype or name is not filled', async () => {
    await save(dir, 't', content(1));
    const checkpoint = await Checkpoint.open(dir);
    const into = (shape: number[], dtype: DType) => Tensor.empty(shape, dtype, cpu());
    await expect(checkpoint.readInto('model', 'w', into([100, 10], 'f32'))).rejects.toEqual(
      refusal(/w: expected \[100, 10\] f32, got \[10, 100\] f32/),
    );
    await expect(checkpoint.readInto('model', 'w', into([10, 100], 'i32'))).rejects.toEqual(
      refusal(/i32/),
    );
    await expect(checkpoint.readInto('model', 'w', into([999], 'f32'))).rejects.toEqual(
      refusal(/w: expected \[999\] f32, got \[10, 100\] f32/),
    );
    await expect(checkpoint.readInto('model', 'v', into([1], 'f32'))).rejects.toEqual(
      refusal(/: v: /),
    );
  });

  test('any flipped byte of any file is detected, with the name of the file', async () => {
    await save(dir, 't', content(1));
    for (const name of [MODEL, OPTIMIZER, 'manifest.json']) {
      const path = join(dir, 't', name);
      const bytes = readFileSync(path);
      for (let k = 0; k < 25; ++k) {
        const at = Math.floor(((bytes.length - 1) * k) / 24.5);
        const damaged = Buffer.from(bytes);
        damaged[at] = (damaged[at] as number) ^ 4;
        writeFileSync(path, damaged);
        await expect(Checkpoint.open(dir)).rejects.toEqual(refusal(new RegExp(name)));
      }
      writeFileSync(path, bytes);
    }
    await Checkpoint.open(dir);
  });

  test.each([0, 5, 200, 3999])('a file truncated to %d bytes is detected', async (bytes) => {
    await save(dir, 't', content(1));
    truncateSync(join(dir, 't', OPTIMIZER), bytes);
    await expect(Checkpoint.open(dir)).rejects.toEqual(
      refusal(new RegExp(`${OPTIMIZER}.*${bytes}`)),
    );
  });
});

describe('leftovers of a dead save', () => {
  test('after a crash between the two renames, the old checkpoint loads and is moved back', async () => {
    await save(dir, 't', content(7));
    const owner = await deadOwner();
    renameSync(join(dir, 't'), join(dir, `.old-t-${owner}~0`));
    mkdirSync(join(dir, `.tmp-t-${owner}`));
    writeFileSync(join(dir, `.tmp-t-${owner}`, MODEL), 'half of it');
    writeFileSync(join(dir, `.latest-${owner}`), 't');
    expect((await valuesOf(dir)).w?.[0]).toBe(7);
    await save(dir, 'u', content(8));
    expect(readdirSync(dir).sort()).toEqual(['latest', 't', 'u']);
    expect((await valuesOf(dir, 't')).w?.[0]).toBe(7);
  });

  test('files of a running save are not deleted', async () => {
    const live = await Claim.take(dir);
    const names = [`.save-${live.owner}`, `.tmp-t-${live.owner}`];
    mkdirSync(join(dir, `.tmp-t-${live.owner}`));
    await save(dir, 'u', content(8));
    expect(readdirSync(dir).sort()).toEqual([...names, 'latest', 'u'].sort());
    await live.leave();
    await save(dir, 'u', content(9));
    expect(readdirSync(dir).sort()).toEqual(['latest', 'u']);
  });

  test('a claim of a save that was killed before it had said anything is deleted', async () => {
    writeFileSync(join(dir, `.save-${'0123456789abcdef'.repeat(2)}`), '');
    await save(dir, 'u', content(8));
    expect(readdirSync(dir).sort()).toEqual(['latest', 'u']);
  });

  test('a file too large to be a claim is kept', async () => {
    const claim = await Claim.take(dir);
    await claim.leave();
    const path = join(dir, `.save-${claim.owner}`);
    const text = `${readFileSync(path, 'utf8')}${' '.repeat(5000)}`;
    writeFileSync(path, text);
    await save(dir, 'u', content(8));
    expect(readFileSync(path, 'utf8')).toBe(text);
  });

  test('a file with the name of a dead claim plus a suffix is kept', async () => {
    const claim = await Claim.take(dir);
    await claim.leave();
    const [path, copy] = ['', '.bak'].map((end) => join(dir, `.save-${claim.owner}${end}`));
    copyFileSync(path as string, copy as string);
    await save(dir, 'u', content(8));
    expect(readdirSync(dir).sort()).toEqual([`.save-${claim.owner}.bak`, 'latest', 'u']);
  });

  test('a claim of another machine without a readable lock is kept for a day', async () => {
    const claim = await Claim.take(dir);
    await claim.leave();
    const path = join(dir, `.save-${claim.owner}`);
    const statement = { ...JSON.parse(readFileSync(path, 'utf8')), locked: false };
    writeFileSync(path, JSON.stringify(statement));
    await save(dir, 'u', content(8));
    expect(readdirSync(dir)).toContain(`.save-${claim.owner}`);
    utimesSync(path, 0, Date.now() / 1000 - 25 * 3600);
    await save(dir, 'u', content(8));
    expect(readdirSync(dir).sort()).toEqual(['latest', 'u']);
  });

  test('a failed save deletes its files, even if another rank never arrives', async () => {
    const never = (label: string) => label === 'making the folder';
    const exchange = async (label: string, value: JsonValue) => {
      if (never(label)) throw new Error('nobody came');
      return [value];
    };
    const target = { dir, tag: 't', saveLatest: true };
    const saving = saveCheckpoint(target, content(1), { rank: 0, size: 1, exchange });
    await expect(saving).rejects.toThrow('nobody came');
    expect(readdirSync(dir)).toEqual([]);
  });
});

test('a folder that cannot be created gives a DsError', async () => {
  writeFileSync(join(dir, 'file'), '');
  await expect(save(join(dir, 'file', 'x'), 't', content(1))).rejects.toEqual(
    refusal(/ENOTDIR/, 'DS_IO'),
  );
});

test('a copied checkpoint loads from its new place', async () => {
  await save(dir, 't', content(5));
  const copy = join(dir, 'copy');
  mkdirSync(copy);
  cpSync(join(dir, 't'), join(copy, 'renamed'), { recursive: true });
  expect((await valuesOf(copy, 'renamed')).w?.[0]).toBe(5);
  expect(existsSync(join(copy, 'latest'))).toBe(false);
});
