// Tests which member of a tree counts as the first failure if exits arrive in another order.
import { spawn } from 'node:child_process';
import { setTimeout as delay } from 'node:timers/promises';

import type { Exit, JobProcess } from '../../lib/launch/member.js';
import { Supervisor } from '../../lib/launch/supervisor.js';

const ECHO = (rank: number): string[] => [
  `DsError: allGather, collective 7 of world: expected all 3 ranks, got rank ${rank} did not arrive`,
  "  code: 'DS_COMM',",
];

/** A member that ends with status `exit` on a call of `end`, or by its signal. */
function member(who: string, stays = false) {
  let settle: (exit: Exit) => void = () => {};
  const exited = new Promise<Exit>((resolve) => {
    settle = resolve;
  });
  const failing = exited.then((exit) =>
    exit.code === 0 ? new Promise<Exit>(() => {}) : Promise.resolve(exit),
  );
  const end = (exit: Partial<Exit>): void =>
    settle({ code: null, signal: null, who, lastLines: [], ...exit });
  const by = (signal: NodeJS.Signals): void => end({ signal });
  const jobProcess: JobProcess = {
    exited,
    failing,
    stop: (signal) => (stays ? undefined : by(signal)),
    kill: () => by('SIGKILL'),
  };
  return { made: jobProcess, end };
}

async function failureOf(
  act: (ranks: ReturnType<typeof member>[]) => void,
  { stays = false, grace = 30 } = {},
): Promise<Exit | null> {
  const ranks = [0, 1, 2].map((rank) => member(`rank ${rank}`, stays));
  const members = ranks.map(({ made }) => made);
  const outcome = new Supervisor(members, grace, () => {}).run();
  act(ranks);
  return (await outcome).failure;
}

test('the failure of a rank ends the other ranks', async () => {
  const [first, second] = [member('rank 0', true), member('rank 1', true)];
  const stop = jest.spyOn(second.made, 'stop');
  const outcome = new Supervisor([first.made, second.made], 30, () => {}).run();
  first.end({ code: 1 });
  await delay(0);
  expect(stop).toHaveBeenCalledWith('SIGTERM');
  second.end({ signal: 'SIGTERM' });
  await outcome;
});

test('a rank killed from outside is reported as the cause, even if its exit arrives after others', async () => {
  const failure = await failureOf(([first, second]) => {
    first?.end({ code: 1, lastLines: ECHO(1) });
    second?.end({ signal: 'SIGKILL' });
  });
  expect(failure).toMatchObject({ who: 'rank 1', signal: 'SIGKILL' });
});

test('a rank that received a stop signal is not reported as the cause', async () => {
  const failure = await failureOf(([first]) => first?.end({ code: 1, lastLines: ECHO(1) }));
  expect(failure).toMatchObject({ who: 'rank 0', code: 1 });
});

test('a rank that ignored the signal and was killed is not reported as the cause', async () => {
  const failure = await failureOf(([first]) => first?.end({ code: 1, lastLines: ECHO(1) }), {
    stays: true,
    grace: 0.05,
  });
  expect(failure).toMatchObject({ who: 'rank 0', code: 1 });
});

test('a grace period beyond the timer limit kills no process', async () => {
  const [first, second] = [member('rank 0', true), member('rank 1', true)];
  const kill = jest.spyOn(second.made, 'kill');
  const outcome = new Supervisor([first.made, second.made], 1e9, () => {}).run();
  first.end({ code: 1 });
  await delay(30);
  expect(kill).not.toHaveBeenCalled();
  second.end({ code: 0 });
  expect((await outcome).failure).toMatchObject({ who: 'rank 0', code: 1 });
});

test('a rank that failed by itself is reported as the cause, even if it ends later', async () => {
  const failure = await failureOf(([first, second]) => {
    first?.end({ code: 1, lastLines: ECHO(1) });
    second?.end({ code: 3, lastLines: ['out of memory'] });
  });
  expect(failure).toMatchObject({ who: 'rank 1', code: 3 });
});

test('an exit during a busy event loop is seen before the cause is reported', async () => {
  const child = spawn('sleep', ['1']);
  const failure = await failureOf(
    ([first, second, third]) => {
      child.once('exit', () => second?.end({ signal: 'SIGKILL' }));
      for (const one of [first, third]) one?.end({ code: 1, lastLines: ECHO(1) });
      // Longer than the launcher waits for a rank that others blame.
      setImmediate(() => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 4000));
    },
    { stays: true },
  );
  expect(failure).toMatchObject({ who: 'rank 1', signal: 'SIGKILL' });
});

test('a signal after the last exit does not wait', async () => {
  const only = member('rank 0');
  const supervisor = new Supervisor([only.made], 30, () => {});
  const outcome = supervisor.run();
  only.end({ code: 0 });
  await outcome;
  const timer = jest.spyOn(global, 'setTimeout');
  supervisor.interrupt('SIGTERM');
  expect(timer).not.toHaveBeenCalled();
  timer.mockRestore();
});
