// Tests which ranks receive an error from inside a joint computation.
import { type JointGroups, jointly, ProcessGroup } from '../../lib/comm/index.js';
import { cpu } from '../../lib/runtime/device.js';
import type { Tickets } from '../../lib/runtime/job.js';

/** The errors that each group received, by its name; collectives complete at once. */
const reported: [string, string][] = [];

function groupOf(name: string, ranks = [0, 1]): ProcessGroup {
  const tickets: Tickets = {
    start: () => 0,
    wait: () => {},
    synchronize: () => {},
    done: () => true,
    giveUp: (error) => void reported.push([name, error]),
  };
  return new ProcessGroup(name, ranks, 0, cpu(), tickets);
}

/** The error of a call that throws `error` after `before`. */
function thrownFrom(groups: JointGroups, error: unknown, before = (): unknown => null): unknown {
  reported.length = 0;
  try {
    jointly(groups, () => {
      before();
      throw error;
    });
  } catch (thrown) {
    return thrown;
  }
  return 'nothing thrown';
}

test('groups that always take part get the error, and others after their first collective', () => {
  const [always, perhaps] = [groupOf('always'), groupOf('perhaps')];
  const groups = { always: [always, null, groupOf('alone', [0])], perhaps: [perhaps, always] };
  const error = new Error('a layer of mine');
  expect(thrownFrom(groups, error)).toBe(error);
  expect(reported).toEqual([['always', 'Error: a layer of mine']]);
  perhaps.barrier();
  expect(thrownFrom(groups, error)).toBe(error);
  expect(reported.map(([name]) => name)).toEqual(['always']);
  expect(thrownFrom(groups, error, () => perhaps.barrier())).toBe(error);
  expect(reported.map(([name]) => name)).toEqual(['always', 'perhaps']);
});

test('every thrown value propagates, and the other ranks get it', () => {
  const groups = { always: [groupOf('pair')] };
  const odd = [Object.create(null), Symbol('odd'), undefined, { toString: () => Symbol('no') }];
  for (const error of odd) {
    expect(thrownFrom(groups, error)).toBe(error);
    expect(reported).toHaveLength(1);
  }
  thrownFrom(groups, 'x'.repeat(5000));
  expect(reported[0]?.[1]).toHaveLength(2004);
});
