// Tests the job's store: operations, authentication, and robustness against bad input.
import { type ChildProcess, spawn } from 'node:child_process';
import { createHmac, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { connect, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { setImmediate as turn } from 'node:timers/promises';
import { addon } from '../../lib/runtime/addon.js';
import { cpu } from '../../lib/runtime/device.js';
import { Job, type StoreAddress, StoreServer } from '../../lib/runtime/job.js';

const ROOT = join(__dirname, '..', '..');
const LIBRARY = join(ROOT, 'lib');
const HOOK = join(ROOT, 'test', 'support', 'run-typescript.cjs');
const COMPILED = __filename.endsWith('.js');
const JOB = join(LIBRARY, 'runtime', COMPILED ? 'job.js' : 'job.ts');
const host = '127.0.0.1';
const NONCE = 32;
const MINUTE = 60_000;
/** In milliseconds, as StoreServer::kSilence. */
const SILENCE = 15_000;

let server: StoreServer;
let secret: string;

beforeEach(() => {
  secret = randomBytes(12).toString('hex');
  server = new StoreServer({ host, port: 0, secret });
});
afterEach(() => server.stop());

const joinRank = (rank: number, text = secret, timeout = MINUTE) =>
  Job.join({ store: { host, port: server.port, secret: text }, rank, worldSize: 2, timeout });

async function withJobs(body: (a: Job, b: Job) => Promise<void>): Promise<void> {
  const [a, b] = await Promise.all([joinRank(0), joinRank(1)]);
  try {
    await body(a, b);
  } finally {
    a.close();
    b.close();
  }
}

function open(port = server.port): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect(port, host, () => resolve(socket));
    socket.on('error', reject);
  });
}

const whenClosed = (socket: Socket) =>
  new Promise<void>((resolve) => {
    socket.resume();
    socket.on('error', () => {});
    socket.on('close', () => resolve());
  });

const bytesOf = (socket: Socket, count: number) =>
  new Promise<Buffer>((resolve) => {
    let got = Buffer.alloc(0);
    socket.on('data', (data) => {
      got = Buffer.concat([got, data]);
      if (got.length >= count) resolve(got.subarray(0, count));
    });
  });

/** The handshake written with Node's own HMAC, as a foreign client would. */
async function shake(socket: Socket, key: string): Promise<{ answer: Buffer; right: Buffer }> {
  const serverNonce = await bytesOf(socket, NONCE);
  const clientNonce = randomBytes(NONCE);
  const proof = (role: string) =>
    createHmac('sha256', key).update(role).update(serverNonce).update(clientNonce).digest();
  const answer = bytesOf(socket, 32);
  socket.write(Buffer.concat([clientNonce, proof('ds client')]));
  return { answer: await answer, right: proof('ds server') };
}

function startNode(program: string): ChildProcess {
  return spawn(process.execPath, [...(COMPILED ? [] : ['-r', HOOK]), '-e', program]);
}

/** A store in a separate process that signals may freeze. */
async function withStoreProcess(
  body: (store: StoreAddress, serving: ChildProcess) => Promise<void>,
): Promise<void> {
  const serving = startNode(`
    const { StoreServer } = require(${JSON.stringify(JOB)});
    const secret = ${JSON.stringify(secret)};
    console.log(new StoreServer({ host: '127.0.0.1', port: 0, secret }).port);
    setInterval(() => {}, 1000);`);
  try {
    const [line] = (await once(serving.stdout as Readable, 'data')) as [Buffer];
    await body({ host, port: Number(line), secret }, serving);
  } finally {
    serving.kill('SIGKILL');
  }
}

/** A rank's report in the format of csrc/comm/wire.h. */
function report(rank: number, ...notes: number[]): Buffer {
  const payload = Buffer.from([8, rank, 0, 0, 0, ...notes]);
  return Buffer.concat([Buffer.from([payload.length, 0, 0, 0]), payload]);
}

async function enter(store: StoreAddress): Promise<Socket> {
  const socket = await open(store.port);
  await shake(socket, secret);
  return socket;
}

/** Rejects with the failure of the job. */
async function failureOf(job: Job): Promise<never> {
  for (;;) {
    await new Promise((r) => setTimeout(r, 5));
    job.check();
  }
}

/** CPU time of this process's watchdogs, in hundredths of a second. */
function watchdogTicks(): number {
  const tasks = readdirSync('/proc/self/task').map((id) => `/proc/self/task/${id}`);
  const stats = tasks.map((task) => readFileSync(`${task}/stat`, 'utf8'));
  const localTexts = stats.filter((stat) => stat.includes('(ds-watchdog)'));
  const ticks = localTexts.flatMap((stat) => stat.split(') ')[1]?.split(' ').slice(11, 13) ?? []);
  return ticks.reduce((sum, each) => sum + Number(each), 0);
}

test('a frozen store fails after the timeout of the job', () =>
  withStoreProcess(async (store, serving) => {
    const [job, patient] = await Promise.all(
      [4000, MINUTE].map((timeout, rank) => Job.join({ store, rank, worldSize: 2, timeout })),
    );
    await Promise.all([job?.set('a', '1'), patient?.set('b', '1')]);
    serving.kill('SIGSTOP');
    // The process may answer until the signal arrives.
    const ask = async (job?: Job) => {
      while (true) await job?.set('a', '2');
    };
    // A job with a longer timeout gives up a silent store after half a minute.
    const lost = ask(patient).catch(() => 'the patient one');
    const first = Promise.race([ask(job), lost]);
    await expect(first).rejects.toMatchObject({ code: 'DS_COMM' });
    await expect(job?.get('a', 10)).rejects.toMatchObject({ code: 'DS_COMM' });
    serving.kill('SIGKILL');
    await lost;
    for (const one of [job, patient]) one?.close();
  }));

test('every request, also a pending one, reports a store with a dead process', () =>
  withStoreProcess(async (store, serving) => {
    const job = await Job.join({ store, rank: 1, worldSize: 2, timeout: MINUTE });
    const underWay = job.get('what nobody sets', MINUTE);
    const died = {
      code: 'DS_COMM',
      expected: expect.stringContaining("the process that holds the job's store (rank 0 or"),
      hint: expect.stringContaining('look at its output'),
    };
    serving.kill('SIGKILL');
    await expect(underWay).rejects.toMatchObject(died);
    await expect(job.set('a', '1')).rejects.toMatchObject(died);
    job.close();
  }));

test('a rank that leaves while the store is busy has left; one that only exits is reported', () =>
  withStoreProcess(async (store, serving) => {
    const leaving = 7;
    const job = await Job.join({ store, rank: 2, worldSize: 3, timeout: MINUTE });
    const [first, second] = [await enter(store), await enter(store)];
    first.write(report(0));
    await once(first, 'data');
    serving.kill('SIGSTOP');
    while (!/ T /.test(readFileSync(`/proc/${serving.pid}/stat`, 'utf8'))) await turn();
    // The answer to the first report breaks the connection; the store still reads the second one.
    await new Promise<void>((resolve) => {
      first.write(Buffer.concat([report(0), report(0, leaving)]), () => resolve());
    });
    first.resetAndDestroy();
    await once(first, 'close');
    serving.kill('SIGCONT');
    await job.set('still', 'here');
    second.end(report(1));
    await expect(failureOf(job)).rejects.toMatchObject({
      got: expect.stringMatching(/^rank 1: /),
    });
    job.close();
  }));

test('a job that is suspended longer than the silence limit continues', () =>
  withStoreProcess(async (store, serving) => {
    const rank = startNode(`
      const { Job } = require(${JSON.stringify(JOB)});
      const options = { store: ${JSON.stringify(store)}, rank: 0, worldSize: 1, timeout: 60000 };
      Job.join(options).then((job) => {
        console.log('joined');
        const ask = () => job.set('a', '1').then(() => job.check());
        const tell = () => ask().then(() => 'well', String).then(console.log);
        process.stdin.once('data', () => tell().then(() => process.exit()));
      });`);
    const nextOutput = async () => String((await once(rank.stdout as Readable, 'data'))[0]);
    try {
      expect(await nextOutput()).toBe('joined\n');
      for (const childProcess of [serving, rank]) childProcess.kill('SIGSTOP');
      await new Promise((r) => setTimeout(r, SILENCE + 1000));
      for (const childProcess of [serving, rank]) childProcess.kill('SIGCONT');
      await new Promise((r) => setTimeout(r, 1000));
      rank.stdin?.write('ask');
      expect(await nextOutput()).toBe('well\n');
    } finally {
      rank.kill('SIGKILL');
    }
  }));

test('a rank of a failed job stays idle, even if the store dies afterwards', () =>
  withStoreProcess(async (store, serving) => {
    const job = await Job.join({ store, rank: 0, worldSize: 2, timeout: MINUTE });
    (await enter(store)).end(report(1));
    await expect(failureOf(job)).rejects.toMatchObject({ code: 'DS_COMM' });
    serving.kill('SIGKILL');
    await once(serving, 'close');
    const before = watchdogTicks();
    await new Promise((r) => setTimeout(r, 1000));
    expect(watchdogTicks() - before).toBeLessThan(5);
    job.close();
  }));

describe('HMAC-SHA256', () => {
  const hmac = (key: Buffer, data: Buffer) => addon.hmacSha256(key, data);

  // RFC 4231, test cases 1, 2, 3 and 6.
  test.each([
    [
      '0b'.repeat(20),
      '4869205468657265',
      'b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7',
    ],
    [
      '4a656665',
      '7768617420646f2079612077616e7420666f72206e6f7468696e673f',
      '5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843',
    ],
    [
      'aa'.repeat(20),
      'dd'.repeat(50),
      '773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe',
    ],
    [
      'aa'.repeat(131),
      '54657374205573696e67204c6172676572205468616e20426c6f636b2d53697a65204b6579202d2048617368204b6579204669727374',
      '60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54',
    ],
  ])('of key %s', (key, data, expected) => {
    expect(hmac(Buffer.from(key, 'hex'), Buffer.from(data, 'hex'))).toBe(expected);
  });

  test('agrees with OpenSSL for every length around the block size', () => {
    for (let length = 0; length < 200; ++length) {
      const key = randomBytes(length);
      const data = randomBytes((length * 7) % 193);
      expect(hmac(key, data)).toBe(createHmac('sha256', key).update(data).digest('hex'));
    }
  });
});

describe('operations', () => {
  test('set, get, add, compareSet, delete, keys', () =>
    withJobs(async (a, b) => {
      await a.set('x', 'né\n1');
      expect(await b.get('x', 0)).toBe('né\n1');
      await a.set('empty', '');
      expect(await b.get('empty', 0)).toBe('');
      expect(await a.add('count', 3)).toBe(3);
      expect(await b.add('count', -5)).toBe(-2);
      expect(await a.compareSet('owner', '', 'a')).toBe('a');
      expect(await b.compareSet('owner', '', 'b')).toBe('a');
      expect(await b.compareSet('owner', 'a', 'b')).toBe('b');
      expect(await a.keys()).toEqual(['count', 'empty', 'owner', 'x']);
      expect(await a.keys('c')).toEqual(['count']);
      expect(await a.delete('x')).toBe(true);
      expect(await b.delete('x')).toBe(false);
      await expect(a.get('x', 50)).rejects.toMatchObject({ code: 'DS_COMM', got: 'no such key' });
    }));

  test('get waits until another rank sets the key', () =>
    withJobs(async (a, b) => {
      const waiting = a.get('late', MINUTE);
      while ((await b.waiters('late')) === 0) await new Promise((r) => setTimeout(r, 5));
      await b.set('late', 'now');
      expect(await waiting).toBe('now');
      expect(await b.waiters('late')).toBe(0);
    }));

  test('get waits for longer than milliseconds of 32 bits', () =>
    withJobs(async (a, b) => {
      const waiting = expect(a.get('late', 2 ** 32)).resolves.toBe('now');
      await new Promise((r) => setTimeout(r, 50));
      await b.set('late', 'now');
      await waiting;
    }));

  test('concurrent add() of two ranks loses no update', () =>
    withJobs(async (a, b) => {
      const adds = Array.from({ length: 100 }, (_, i) => (i % 2 ? a : b).add('sum', i));
      await Promise.all(adds);
      expect(await a.add('sum', 0)).toBe(4950);
    }));

  test('a job that closes ends its requests', () =>
    withJobs(async (a, b) => {
      const c = await joinRank(0);
      const requests: Promise<unknown>[] = [c.get('never', MINUTE)];
      while ((await b.waiters('never')) === 0) await new Promise((r) => setTimeout(r, 5));
      requests.push(c.set('late', 'x'), c.get('never', MINUTE));
      const ends = Promise.allSettled(requests);
      c.close();
      for (const end of await ends)
        expect(end).toMatchObject({ status: 'rejected', reason: { code: 'DS_COMM' } });
      cpu().synchronize();
      expect(await a.add('still', 1)).toBe(1);
    }));

  test('a too large value is refused, and the connection stays open', () =>
    withJobs(async (a) => {
      await expect(a.set('big', 'x'.repeat(5 << 20))).rejects.toMatchObject({ code: 'DS_COMM' });
      await a.set('big', 'x'.repeat(3 << 20));
      expect((await a.get('big', 0)).length).toBe(3 << 20);
    }));
});

describe('admission', () => {
  test('both sides prove the secret, and never send it', async () => {
    const socket = await open();
    const { answer, right } = await shake(socket, secret);
    expect(answer.equals(right)).toBe(true);
    socket.destroy();
  });

  test('another secret is refused', async () => {
    await expect(joinRank(0, 'another')).rejects.toMatchObject({
      code: 'DS_COMM',
      got: 'a refusal',
    });
  });

  test('an answer to an old challenge is refused', async () => {
    const first = await open();
    const serverNonce = await bytesOf(first, NONCE);
    const clientNonce = randomBytes(NONCE);
    const old = createHmac('sha256', secret)
      .update('ds client')
      .update(serverNonce)
      .update(clientNonce)
      .digest();
    const second = await open();
    second.write(Buffer.concat([clientNonce, old]));
    await whenClosed(second);
    first.destroy();
  });

  test('a client does not trust a server that lacks the secret', async () => {
    const imposter = createServer((socket) => socket.write(randomBytes(NONCE + 32)));
    await new Promise<void>((resolve) => imposter.listen(0, host, resolve));
    const { port } = imposter.address() as { port: number };
    const store = { host, port, secret };
    await expect(Job.join({ store, rank: 0, worldSize: 2, timeout: MINUTE })).rejects.toMatchObject(
      { code: 'DS_COMM', got: "a server that does not know the job's secret" },
    );
    imposter.close();
  });

  test('it listens on its address only', async () => {
    const other = connect(server.port, '127.0.0.2');
    await expect(new Promise((_, reject) => other.on('error', reject))).rejects.toMatchObject({
      code: 'ECONNREFUSED',
    });
  });

  test('a port in use is a clear error', () => {
    expect(() => new StoreServer({ host, port: server.port, secret })).toThrow(
      expect.objectContaining({ code: 'DS_COMM', hint: expect.stringContaining('MASTER_PORT') }),
    );
  });

  test('an address of another machine is a clear error', () => {
    expect(() => new StoreServer({ host: '192.0.2.1', port: 0, secret })).toThrow(
      expect.objectContaining({ code: 'DS_COMM', hint: expect.stringContaining('MASTER_ADDR') }),
    );
  });

  test('a connection without a listener ends in time', async () => {
    const store = { host, port: 1, secret };
    await expect(Job.join({ store, rank: 0, worldSize: 2, timeout: 200 })).rejects.toMatchObject({
      code: 'DS_COMM',
      got: 'no server there in time',
    });
  });
});

describe('a store that answers nonsense', () => {
  /** A server with the secret that sends `bytes` to each client after authentication. */
  async function withImposter(bytes: Buffer, body: (store: StoreAddress) => Promise<void>) {
    const sockets: Socket[] = [];
    const imposter = createServer((socket) => {
      sockets.push(socket);
      socket.on('error', () => {});
      const challenge = randomBytes(NONCE);
      socket.write(challenge);
      socket.once('data', (data) => {
        const proof = createHmac('sha256', secret).update('ds server').update(challenge);
        socket.write(Buffer.concat([proof.update(data.subarray(0, NONCE)).digest(), bytes]));
      });
    });
    await new Promise<void>((resolve) => imposter.listen(0, host, resolve));
    const { port } = imposter.address() as { port: number };
    try {
      await body({ host, port, secret });
    } finally {
      for (const socket of sockets) socket.destroy();
      imposter.close();
    }
  }

  test.each([
    ['an empty message', '00000000'],
    ['a message without end', 'ffffffff'],
    ['a verdict that breaks off', '0600000003ffffffff00'],
  ])('%s fails the job, not the process', (_name, bytes) =>
    withImposter(Buffer.from(bytes, 'hex'), async (store) => {
      const job = await Job.join({ store, rank: 0, worldSize: 2, timeout: MINUTE });
      await expect(job.add('x', 1)).rejects.toMatchObject({ code: 'DS_COMM' });
      const look = () => cpu().synchronize();
      let failure: unknown = null;
      while (!failure) {
        await new Promise((r) => setTimeout(r, 5));
        try {
          look();
        } catch (error) {
          failure = error;
        }
      }
      expect(failure).toMatchObject({ got: expect.stringContaining('an invalid answer') });
      job.close();
      look();
    }),
  );
});

describe('hostile clients', () => {
  test('random bytes before the proof', async () => {
    for (let i = 0; i < 50; ++i) {
      const socket = await open();
      socket.on('error', () => {});
      socket.write(randomBytes(1 + ((i * 37) % 500)));
      socket.end();
    }
    await withJobs(async (a, b) => {
      await a.set('still', 'here');
      expect(await b.get('still', 0)).toBe('here');
    });
  });

  test('random frames after the proof', async () => {
    for (let i = 0; i < 100; ++i) {
      const socket = await open();
      await shake(socket, secret);
      const end = whenClosed(socket);
      const body = randomBytes(1 + ((i * 11) % 90));
      body[0] = i % 10; // mostly known requests, followed by random bytes
      const head = Buffer.alloc(4);
      head.writeUInt32LE(i % 5 === 0 ? 0xffffffff : body.length);
      socket.end(Buffer.concat([head, body]));
      await end;
    }
    await withJobs(async (a) => expect(await a.add('alive', 1)).toBe(1));
  });

  test('1,000 idle connections starve no rank', async () => {
    const idle: Socket[] = [];
    for (let i = 0; i < 1000; ++i) idle.push(await open());
    await withJobs(async (a, b) => {
      await a.set('through', 'the crowd');
      expect(await b.get('through', 0)).toBe('the crowd');
    });
    for (const socket of idle) socket.destroy();
  });
});
