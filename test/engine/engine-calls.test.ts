// Tests the order of calls, the ranks that receive the error of a failed call, and the order in
// which an engine releases its parts.
import { EngineCalls, StateUse } from '../../lib/engine/calls.js';
import { buildOrRelease, ReleaseStack } from '../../lib/engine/release-stack.js';
import { DsError } from '../../lib/errors.js';
import { cpu } from '../../lib/runtime/device.js';
import { tinyEngine } from '../e2e/tiny-training.js';
import { refusal, thrownBy } from '../support/refusal.js';

/** A group of several ranks; records the errors that its ranks receive. */
function group(name: string, size = 2) {
  const heard: string[] = [];
  return { name, size, issued: 0, heard, giveUp: (text: string) => void heard.push(text) };
}
type Group = ReturnType<typeof group>;

function callsOf({ gathers = false, trains = true } = {}) {
  const groups = {
    world: group('world'),
    shardGroup: group('shard'),
    replicaGroup: group('replica'),
    secondaryGroup: group('second'),
    tensorGroup: group('tensor'),
    sequenceGroup: null,
  };
  const own = group('own');
  const calls = new EngineCalls(groups as never, {
    gathersWeights: gathers,
    hasOptimizer: trains,
    parameterGroups: [own as never],
  });
  const all: Group[] = [...Object.values(groups).flatMap((one) => one ?? []), own];
  /** The groups that receive a failure, if the groups `issuing` had collectives in the call. */
  const heardOf = (run: (body: () => never) => unknown, issuing: readonly string[] = []) => {
    for (const one of all) one.heard.length = 0;
    const fail = (): never => {
      for (const one of all) if (issuing.includes(one.name)) one.issued++;
      throw new Error('a failure of mine');
    };
    expect(() => run(fail)).toThrow('a failure of mine');
    return all.filter(({ heard }) => heard.length > 0).map(({ name }) => name);
  };
  return { calls, groups, heardOf };
}

const OFFLOADED = { code: 'DS_RELEASED', got: 'offloaded states' };

test('ranks that share layers, and ranks of started collectives, receive a failure', () => {
  const { calls, heardOf } = callsOf();
  const pass = (body: () => never) => calls.pass(body);
  expect(heardOf(pass)).toEqual(['tensor']);
  expect(heardOf(pass, ['shard', 'world'])).toEqual(['shard', 'tensor']);
  expect(heardOf(pass, ['replica', 'second', 'own'])).toEqual([
    'replica',
    'second',
    'tensor',
    'own',
  ]);
  const gathering = callsOf({ gathers: true });
  const gatheringPass = (body: () => never) => gathering.calls.pass(body);
  expect(gathering.heardOf(gatheringPass)).toEqual(['shard', 'tensor', 'own']);
});

test.each([2, 3] as const)(
  'only ranks that gather weights wait in a forward: stage %i',
  async (stage) => {
    const zero = { stage };
    const engine = await tinyEngine({ precision: 'fp32', offload: false, zero }, cpu());
    const { calls, parts } = engine as unknown as {
      calls: { passGroups: { always: readonly unknown[] } };
      parts: { ranks: { shardGroup: unknown } };
    };
    expect(calls.passGroups.always.includes(parts.ranks.shardGroup)).toBe(stage === 3);
    engine.destroy();
  },
);

test('the error of a failed step reaches the ranks that took part in it', () => {
  const { calls, heardOf } = callsOf();
  const step = (body: () => never) => calls.step(body);
  expect(heardOf(step)).toEqual([]);
  const all = ['world', 'shard', 'replica', 'second', 'tensor', 'own'];
  expect(heardOf(step, all)).toEqual(all);
});

test('the groups in which ranks may wait are all of several ranks, each once', () => {
  const { calls, groups } = callsOf({ gathers: true });
  const more = group('more');
  calls.join({ always: [more as never, null, group('alone', 1) as never] });
  calls.join({});
  const names = calls.groups.map((one) => (one as never as Group).name).sort();
  expect(names).toEqual(['more', 'own', 'replica', 'second', 'shard', 'tensor', 'world']);
  groups.world.size = 1;
  expect(calls.groups.map((one) => (one as never as Group).name)).not.toContain('world');
});

test('after close() every call is refused', () => {
  const { calls } = callsOf();
  calls.requireOpen('a');
  calls.requireReadable('a');
  calls.requireChangeable('a');
  calls.close(() => {});
  for (const call of ['requireOpen', 'requireReadable', 'requireChangeable', 'requireBackward']) {
    expect(thrownBy(() => calls[call as 'requireOpen']('engine.x'))).toMatchObject({
      code: 'DS_AUTOGRAD',
      op: 'engine.x',
      expected: 'a call before engine.destroy()',
    });
  }
});

test('an engine without an optimizer is not changed', () => {
  const { calls } = callsOf({ trains: false });
  calls.requireReadable('engine.forward');
  const error = thrownBy(() => calls.requireBackward('engine.backward'));
  expect(error).toMatchObject({ code: 'DS_CONFIG', got: 'an engine for forwards only' });
});

test('a call that needs states on the device is refused while they are offloaded', () => {
  const { calls } = callsOf();
  const missing = (name: 'requireReadable' | 'requireChangeable' | 'requireBackward') => {
    try {
      calls[name]('engine.x');
      return null;
    } catch (error) {
      return (error as DsError).expected;
    }
  };
  calls.use.offloaded.add('optim_states');
  expect(missing('requireReadable')).toBeNull();
  expect(missing('requireBackward')).toBeNull();
  expect(missing('requireChangeable')).toBe('optim_states on the device');
  calls.use.offloaded.add('lp_params');
  expect(missing('requireReadable')).toBe('lp_params on the device');
  expect(missing('requireBackward')).toBe('lp_params on the device');
  expect(missing('requireChangeable')).toMatch(/optim_states/);
});

const lost = new DsError({ code: 'DS_COMM', op: 'group', expected: 'all', got: 'fewer' });
const fail = (error: Error) => (): never => {
  throw error;
};

test('close() hides the end of the job only after a call that failed last', async () => {
  const expectEnd = async (use: (calls: EngineCalls) => unknown, error: Error) => {
    const { calls } = callsOf();
    await use(calls);
    try {
      calls.close(fail(error));
      return null;
    } catch (thrown) {
      return thrown;
    }
  };
  const failPass = (calls: EngineCalls) => expect(() => calls.pass(fail(lost))).toThrow(lost);
  const turn = (calls: EngineCalls, body: () => Promise<unknown>) => calls.runAsync({}, body);
  expect(await expectEnd(() => {}, lost)).toBe(lost);
  expect(await expectEnd(failPass, lost)).toBeNull();
  expect(
    await expectEnd((calls) => turn(calls, fail(lost) as never).catch(() => {}), lost),
  ).toBeNull();
  const other = new Error('a failure of its own');
  expect(await expectEnd(failPass, other)).toBe(other);
  const recover = (calls: EngineCalls) => {
    failPass(calls);
    return calls.step(() => 1);
  };
  expect(await expectEnd(recover, lost)).toBe(lost);
  const inTurns = async (calls: EngineCalls) => {
    failPass(calls);
    expect(await turn(calls, async () => 7)).toBe(7);
  };
  expect(await expectEnd(inTurns, lost)).toBe(lost);
});

describe('asynchronous calls', () => {
  /** Runs `body` during a call that reads or replaces the state. */
  async function whileIn(kind: 'runReading' | 'runChanging', body: (use: StateUse) => unknown) {
    const use = new StateUse();
    let end = () => {};
    const call = kind === 'runReading' ? 'saveCheckpoint' : 'loadCheckpoint';
    const ended = new Promise<void>((resolve) => {
      end = resolve;
    });
    const running = use[kind](call, () => ended);
    try {
      return await body(use);
    } finally {
      end();
      await running;
      use.requireIdle('later');
      use.requireLoaded('later');
    }
  }

  test('that only read may overlap, and block changes', async () => {
    await whileIn('runReading', async (use) => {
      use.requireLoaded('engine.forward');
      expect(await use.runReading('save16bitModel', async () => 3)).toBe(3);
      const error = thrownBy(() => use.requireIdle('engine.step'));
      expect(error).toMatchObject({
        code: 'DS_AUTOGRAD',
        op: 'engine.step',
        expected: 'a call after the end of saveCheckpoint()',
        got: 'a call while saveCheckpoint() writes the engine state',
        hint: expect.stringContaining('{ asynchronous: true }'),
      });
      expect((await refusal(() => use.runChanging('load', async () => 3))).op).toBe('load');
    });
  });

  test('calls that replace the state run alone', async () => {
    await whileIn('runChanging', async (use) => {
      const error = thrownBy(() => use.requireLoaded('engine.forward'));
      expect(error).toMatchObject({
        got: 'a call while loadCheckpoint() replaces the engine state',
        hint: 'Await loadCheckpoint().',
      });
      for (const kind of ['runReading', 'runChanging'] as const) {
        expect((await refusal(() => use[kind]('next', async () => 3))).op).toBe('next');
      }
    });
  });

  test('need all states on the device, and count as ended if they throw', async () => {
    const use = new StateUse();
    await expect(use.runReading('a', fail(lost) as never)).rejects.toBe(lost);
    use.requireIdle('later');
    use.offloaded.add('hp_params');
    for (const kind of ['runReading', 'runChanging'] as const) {
      expect(await refusal(() => use[kind]('a', async () => 3))).toMatchObject(OFFLOADED);
    }
    use.requirePresent('a', ['lp_params']);
  });
});

describe('a stack of releases', () => {
  test('runs them once, the last one first, and throws the first error at the end', () => {
    const stack = new ReleaseStack();
    const calls: string[] = [];
    const errors = ['b', 'd'].map((text) => new Error(text));
    stack.defer(() => void calls.push('a'));
    stack.defer(fail(errors[0] as Error));
    expect(stack.own({ dispose: () => void calls.push('c') })).toHaveProperty('dispose');
    stack.defer(fail(errors[1] as Error));
    expect(() => stack.release()).toThrow(errors[1]);
    expect(calls).toEqual(['c', 'a']);
    stack.release();
    expect(calls).toEqual(['c', 'a']);
  });

  test('of a failed build is run, with a warning if it fails too', () => {
    const warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
    const calls: string[] = [];
    const cause = new Error('the cause');
    const build = () =>
      buildOrRelease(({ owned, undo }) => {
        owned.defer(() => void calls.push('owned'));
        undo.defer(() => void calls.push('undo'));
        undo.defer(fail(new Error('a release')));
        throw cause;
      });
    expect(build).toThrow(cause);
    expect(calls).toEqual(['owned', 'undo']);
    expect(warn.mock.calls).toEqual([
      [
        'initialize() failed, and releasing its resources failed too: a release',
        { type: 'DsWarning', code: 'DS_RELEASE' },
      ],
    ]);
    warn.mockRestore();
  });

  test('of a build that succeeds is kept', () => {
    const calls: string[] = [];
    const kept = buildOrRelease((site) => {
      site.owned.defer(() => void calls.push('owned'));
      site.undo.defer(() => void calls.push('undo'));
      return site;
    });
    expect(calls).toEqual([]);
    kept.owned.release();
    expect(calls).toEqual(['owned']);
  });
});
