// Tests checkpoints of several processes: any number of ranks and any stage loads the checkpoint of
// any other.
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { consolidate, listTags } from '../../lib/checkpoint/index.js';
import { RankPool } from './rank-pool.js';

let pool: RankPool;
let dir: string;
beforeAll(async () => {
  pool = await RankPool.start(4);
});
afterAll(() => pool.stop());
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-ranks-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

function refusal(message: RegExp, code = 'DS_CHECKPOINT') {
  return expect.objectContaining({ code, message: expect.stringMatching(message) });
}

/** Errors by rank; null without an error. */
async function run(...args: Parameters<RankPool['run']>) {
  const answers = await pool.run(...args);
  return answers.map((answer) => answer?.error ?? null);
}

const fine = (size: number) => new Array(size).fill(null);

const SIZES = [1, 2, 3, 4];

describe.each([0, 1, 3])('saved at stage %d', (stage) => {
  test.each(SIZES)(
    'by %d ranks: loaded by 1 to 4 at stages 0, 2 and 3, bit for bit',
    async (size) => {
      const tag = 't';
      expect(await run(size, stage, { what: 'save', dir, tag })).toEqual(fine(size));
      for (const readers of SIZES) {
        for (const other of [0, 2, 3]) {
          const errors = await run(readers, other, { what: 'load', dir, tag });
          expect({ readers, other, errors }).toEqual({ readers, other, errors: fine(readers) });
        }
      }
    },
  );
});

test.each([0, 1, 3])(
  'stage %d: files have the names of DeepSpeed, and each byte of state is saved once',
  async (stage) => {
    const bytes = async (size: number) => {
      const tag = `of${size}`;
      await run(size, stage, { what: 'save', dir, tag });
      const names = readdirSync(join(dir, tag)).sort();
      const state = names.filter((name) => /optim/.test(name));
      const weights = names.filter((name) => /model/.test(name));
      const ranks = Array.from({ length: size }, (_, rank) => `zero_pp_rank_${rank}_mp_rank_00`);
      expect(state).toEqual(ranks.map((rank) => `${rank}_optim_states.safetensors`));
      const texts = ['mp_rank_00_model_states.safetensors'];
      const each = ranks.map((rank) => `${rank}_model_states.safetensors`);
      expect(weights).toEqual(stage === 3 ? each : texts);
      return state.map(
        (name) => statSync(join(dir, tag, name)).size - headerBytes(join(dir, tag, name)),
      );
    };
    const [alone] = (await bytes(1)) as [number];
    const shares = await bytes(3);
    expect(shares.reduce((a, b) => a + b)).toBe(alone);
    for (const share of shares) expect(Math.abs(share - alone / 3)).toBeLessThan(0.02 * alone);
  },
);

function headerBytes(path: string): number {
  return 8 + Number(readFileSync(path).readBigUInt64LE(0));
}

test.each([1, 3])(
  'stage %d: two and three ranks save asynchronously while their event loops stand still',
  async (stage) => {
    for (const size of [2, 3]) {
      const tag = `of${size}`;
      expect(await run(size, stage, { what: 'beside', dir, tag })).toEqual(fine(size));
      expect(await run(2, 0, { what: 'load', dir, tag })).toEqual(fine(2));
    }
  },
);

test('an asynchronous save that one rank does not join fails on the others, naming it', async () => {
  const command = { what: 'beside', dir, tag: 't' } as const;
  const own = (rank: number) => (rank === 2 ? null : { timeout: 6000 });
  const answers = await pool.run(3, 1, command, own);
  for (const rank of [0, 1]) {
    expect(answers[rank]?.error).toEqual(refusal(/no message from rank 2/, 'DS_COMM'));
  }
  expect(readdirSync(dir)).toEqual([]);
});

test('weights exported or consolidated by several ranks equal those of one rank', async () => {
  const bytesOf = (...path: string[]) => readFileSync(join(dir, ...path)).toString('base64');
  await run(1, 0, { what: 'save', dir, tag: 'whole' });
  await consolidate(dir, join(dir, 'hf'));
  const consolidated = bytesOf('hf', 'model.safetensors');
  const exported = new Set<string>();
  for (const stage of [0, 2, 3]) {
    expect(await run(3, stage, { what: 'save', dir, tag: 't' })).toEqual(fine(3));
    await consolidate(dir, join(dir, `hf${stage}`), { tag: 't' });
    expect(bytesOf(`hf${stage}`, 'model.safetensors') === consolidated).toBe(true);
    for (const size of [1, 4]) {
      const tag = `w${size}-${stage}`;
      expect(await run(size, stage, { what: 'export', dir, tag })).toEqual(fine(size));
      exported.add(bytesOf(tag));
    }
  }
  expect(exported.size).toBe(1);
});

describe('disagreement', () => {
  const tagOf = (rank: number) => ({ tag: rank === 1 ? 'other' : 't' });

  test('different tags with validation "Fail" are refused on every rank, without leftovers', async () => {
    const own = (rank: number) => ({ ...tagOf(rank), tagValidation: 'Fail' as const });
    const errors = await run(3, 1, { what: 'save', dir, tag: '' }, own);
    for (const error of errors) {
      expect(error).toEqual(
        refusal(/same tag on every rank, got "t" on rank 0 and "other" on rank 1/),
      );
    }
    expect(readdirSync(dir)).toEqual([]);
  });

  test('different tags under Ignore: rank 0 decides', async () => {
    const own = (rank: number) => ({ ...tagOf(rank), tagValidation: 'Ignore' as const });
    expect(await run(3, 1, { what: 'save', dir, tag: '' }, own)).toEqual(fine(3));
    expect(readdirSync(dir).sort()).toEqual(['latest', 't']);
  });

  test('the error of a save on some ranks names the missing ranks', async () => {
    const own = (rank: number) => (rank === 0 || rank === 2 ? { timeout: 6000 } : null);
    const errors = await run(4, 1, { what: 'save', dir, tag: 't' }, own);
    for (const rank of [0, 2]) {
      expect(errors[rank]).toEqual(
        refusal(/every rank within 6 s, got no message from ranks 1, 3/, 'DS_COMM'),
      );
    }
    expect(readdirSync(dir)).toEqual([]);
  });

  test.each(['save', 'beside'] as const)('one rank calls %s while another loads', async (kind) => {
    const own = (rank: number) => ({ what: rank === 0 ? kind : ('load' as const) });
    const errors = await run(2, 1, { what: 'save', dir, tag: 't' }, own);
    for (const error of errors)
      expect(error).toEqual(refusal(/same call on every rank/, 'DS_COMM'));
  });

  test.each(['save', 'beside', 'load', 'export'] as const)(
    'one rank has destroyed its engine: %s learns of it before time is up',
    async (kind) => {
      const own = (rank: number) =>
        rank === 1 ? { what: 'calls' as const, calls: [] } : { timeout: 6000 };
      const errors = await run(3, 1, { what: kind, dir, tag: 't' }, own);
      expect(errors[1]).toBeNull();
      for (const rank of [0, 2]) {
        expect(errors[rank]).toEqual(
          refusal(/same call on every rank, got "engine\.destroy\(\)" on rank 1/, 'DS_COMM'),
        );
      }
    },
  );

  test('destroying the engine on one rank during a save ends the save on every rank, with the reason', async () => {
    const calls = [{ method: 'save' as const, isAwaited: false }];
    expect(await run(2, 1, { what: 'save', dir, tag: 't' })).toEqual(fine(2));
    const own = (rank: number) => (rank === 1 ? { calls } : { what: 'call' as const });
    const job = { what: 'calls', method: 'save', dir, tag: 'u' } as const;
    expect(await run(2, 1, job, own)).toEqual([
      refusal(/on rank 1: .*Await saveCheckpoint\(\) before engine\.destroy\(\)/),
      refusal(/^saveCheckpoint: .*Await saveCheckpoint\(\) before engine/, 'DS_AUTOGRAD'),
    ]);
    expect(await listTags(dir)).toEqual(['t']);
  });

  test('different tags in a load are refused on every rank, unless only one rank gives a tag', async () => {
    for (const tag of ['t', 'u']) {
      expect(await run(3, 1, { what: 'save', dir, tag })).toEqual(fine(3));
    }
    const optionsOf = (rank: number) => ({ tag: rank === 1 ? 'u' : 't' });
    for (const error of await run(3, 1, { what: 'load', dir, tag: '' }, optionsOf)) {
      expect(error).toEqual(
        refusal(/checkpoint tag: .*same tag on every rank, got "t" on rank 0 and "u" on rank 1/),
      );
    }
    const first = (rank: number) => ({ tag: rank === 0 ? 't' : undefined });
    expect(await run(3, 1, { what: 'load', dir, tag: '' }, first)).toEqual(fine(3));
  });

  test.each([0, 1])(
    'an asynchronous save on rank %i only fails on all ranks at once',
    async (odd) => {
      const own = (rank: number) => ({ options: { asynchronous: rank === odd } });
      const errors = await run(3, 1, { what: 'call', method: 'save', dir, tag: 't' }, own);
      const others = [0, 1, 2].filter((rank) => rank !== odd).join(', ');
      const message = new RegExp(
        `same value on every rank, got true on rank ${odd}, false on ranks ${others}`,
      );
      expect(errors).toEqual([0, 1, 2].map(() => refusal(message)));
      expect(readdirSync(dir)).toEqual([]);
    },
  );

  test('saves of both kinds, refused ones and loads follow each other', async () => {
    const calls = [
      { save: { asynchronous: true } },
      { save: {}, odd: { asynchronous: true } },
      { save: { asynchronous: true }, odd: { asynchronus: true } },
      { save: { asynchronous: true } },
      { load: {} },
      { save: {} },
      { save: { asynchronous: true }, odd: {} },
      { load: {} },
    ];
    const own = (rank: number) => ({
      calls: calls.map(({ save, load, odd }) => ({
        method: load ? ('load' as const) : ('save' as const),
        options: (rank === 1 && odd) || save || load,
        fails: odd !== undefined,
      })),
    });
    expect(await run(3, 1, { what: 'calls', dir, tag: 't' }, own)).toEqual(fine(3));
  });

  test.each([
    ['save', {}, 'saving a checkpoint on rank 1: saveCheckpoint'],
    ['save', { asynchronous: true }, 'saving a checkpoint on rank 1: saveCheckpoint'],
    ['load', {}, 'loading a checkpoint on rank 1: loadCheckpoint'],
    ['exportWeights', {}, 'comparing tensors on rank 1: save16bitModel'],
  ] as const)(
    'an invalid argument of %s on one rank, %j, is an error on all ranks',
    async (method, options, at) => {
      const command = { what: 'call', method, dir, tag: 't' } as const;
      const messageFor = async (odd: object) => {
        const own = (rank: number) => ({ options: rank === 1 ? { ...options, ...odd } : options });
        return run(3, 1, command, own);
      };
      if (method === 'load') await run(3, 1, { what: 'save', dir, tag: 't' });
      const wrong = [{ clientSate: {} }, { excludeFrozenParameters: 'yes' }, { asynchronous: 1 }];
      const known = { load: 1, exportWeights: 2, save: 3 }[method];
      for (const odd of wrong.slice(0, known)) {
        const errors = await messageFor(odd);
        expect(errors[1]).toEqual(refusal(/expected/, 'DS_ARGUMENT'));
        for (const rank of [0, 2]) expect(errors[rank]).toEqual(refusal(new RegExp(at)));
      }
      expect(await messageFor({})).toEqual(fine(3));
    },
  );

  test('a write error on one rank fails all ranks, and the old checkpoint remains', async () => {
    expect(await run(2, 1, { what: 'save', dir, tag: 't' })).toEqual(fine(2));
    const before = readdirSync(join(dir, 't'));
    const file = join(dir, 'file');
    writeFileSync(file, '');
    const own = (rank: number) => ({ dir: rank === 1 ? join(file, 'below') : dir });
    const errors = await run(2, 1, { what: 'save', dir, tag: 't' }, own);
    expect(errors[1]).toEqual(refusal(/Not a directory/, 'DS_IO'));
    expect(errors[0]).toEqual(refusal(/writing shards on rank 1: .*Not a directory/));
    expect(readdirSync(dir).sort()).toEqual(['file', 'latest', 't']);
    expect(readdirSync(join(dir, 't'))).toEqual(before);
    expect(await run(3, 0, { what: 'load', dir, tag: 't' })).toEqual(fine(3));
  });
});

test('one flipped byte in any file of three ranks is detected by all loading ranks, with its file', async () => {
  await run(3, 3, { what: 'save', dir, tag: 't' });
  for (const name of readdirSync(join(dir, 't'))) {
    const path = join(dir, 't', name);
    const bytes = readFileSync(path);
    const damaged = Buffer.from(bytes);
    const at = Math.floor(bytes.length * 0.7);
    damaged[at] = (damaged[at] as number) ^ 1;
    writeFileSync(path, damaged);
    for (const error of await run(2, 1, { what: 'load', dir, tag: 't' })) {
      expect(error).toEqual(refusal(new RegExp(name)));
    }
    writeFileSync(path, bytes);
  }
  expect(await run(2, 1, { what: 'load', dir, tag: 't' })).toEqual(fine(2));
});
