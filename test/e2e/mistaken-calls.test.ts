// What a plain JavaScript program may call by mistake: every function of the package is given what
// it cannot take, and answers with a DsError that says so, never with a TypeError of its insides.
import * as ds from '../../lib/index.js';
import { surfaceOf } from '../docs/reference.js';

/**
 * Functions for those who write layers, ops, optimizers and schedules, in whose loops a check would
 * be in the way, and views of what others return: TypeScript's types hold them.
 */
const FOR_AUTHORS = new Set([
  ...['beforeBackward', 'claim', 'leavingLate', 'record', 'replayRandom', 'segmentsOf', 'within'],
  ...['recomputable', 'recomputed', 'sharingSamples', 'sharingTokens'],
  ...['addConfigArguments', 'parseConfigArguments', 'data.collate', 'monitor.progressLine'],
  ...['comm.jointly', 'comm.jointlyInTurns', 'optim.makeMuonGroups', 'optim.perBlock'],
  ...['nn.init.ones', 'nn.init.zeros', 'nn.loadBalancingLoss', 'nn.models.gpt2ActivationBytes'],
  ...['nn.models.gpt2HuggingFaceNames', 'parallel.vocabularyCrossEntropy', 'pipe.drawSchedule'],
  ...['pipe.lower', 'pipe.simulate', 'profiler.formatProfile', 'profiler.printProfile'],
  ...['profiler.writeTrace', 'combineRows', 'routeTopK'],
]);

type Call = (...given: readonly unknown[]) => unknown;

const at = (path: string): unknown =>
  path.split('.').reduce<unknown>((owner, name) => (owner as Record<string, unknown>)?.[name], ds);

const isClass = (value: Call): boolean => /^class\b/.test(Function.prototype.toString.call(value));

const functions = surfaceOf('lib/index.ts')
  .filter(({ isMember, isInternal }) => !isMember && !isInternal)
  .map(({ path }) => path)
  .filter((path) => typeof at(path) === 'function' && !isClass(at(path) as Call));

const MISTAKES: readonly (readonly unknown[])[] = [[], [{}], [null], ['x'], [3], [[]]];

/** The error of a call; null where it found nothing to complain about. */
async function errorOf(path: string, given: readonly unknown[]): Promise<Error | null> {
  try {
    await (at(path) as Call)(...given);
    return null;
  } catch (error) {
    return error as Error;
  }
}

/** These wait for ranks, or listen, when they are called without arguments. */
const RUNS = new Set(['initDistributed', 'comm.initDistributed', 'comm.joinLaunched', 'serve']);

test('there are functions to call', () => {
  expect(functions.length).toBeGreaterThan(150);
  for (const path of [...FOR_AUTHORS, ...RUNS]) expect(functions).toContain(path);
});

test.each(functions.filter((path) => !FOR_AUTHORS.has(path) && !RUNS.has(path)))(
  '%s says what it cannot take',
  async (path) => {
    for (const given of MISTAKES) {
      const error = await errorOf(path, given);
      if (error && !(error instanceof ds.DsError))
        throw new Error(`${path}(${JSON.stringify(given).slice(1, -1)})`, { cause: error });
    }
  },
);
