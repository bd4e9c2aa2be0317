// What ranks compute together: where one of them meets with an error, the others are told of it at
// once, and do not wait for it until the job's timeout.
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import type { ProcessGroup } from './process-group.js';

/** Of the text of an error, as much as the others are told. */
const MOST = 2000;

/** Groups whose ranks take part in a call; null stands for none. */
export interface JointGroups {
  /** Those that have collectives in every such call. */
  always?: readonly (ProcessGroup | null)[];
  /**
   * Those that may have some: ranks of these learn of an error once this one has begun some in the
   * call that fails, and may otherwise go on with another call.
   */
  perhaps?: readonly (ProcessGroup | null)[];
}

/** One call that all ranks of its groups make alike. */
export class JointCall {
  private readonly begun: ReadonlyMap<ProcessGroup, number>;

  constructor(private readonly groups: JointGroups) {
    this.begun = new Map(others(groups.perhaps).map((group) => [group, group.issued]));
  }

  /**
   * This rank cannot go on with the call. Ranks that go on get DS_COMM, which names this one and
   * `error`, unless they meet with an error at the same place. Never throws.
   */
  giveUp(error: unknown): void {
    const { always } = this.groups;
    const started = [...this.begun].filter(([{ issued }, before]) => issued !== before);
    const all = new Set([...others(always), ...started.map(([group]) => group)]);
    for (const group of all) group.giveUp(reportOf(error));
  }
}

/** Runs `body`; where it throws, the other ranks of the groups are told. */
export function jointly<Result>(groups: JointGroups, body: () => Result): Result {
  const call = new JointCall(groups);
  try {
    return body();
  } catch (error) {
    call.giveUp(error);
    throw error;
  }
}

/** The same of what takes turns of the event loop. */
export async function jointlyInTurns<Result>(
  groups: JointGroups,
  body: () => Promise<Result>,
): Promise<Result> {
  const call = new JointCall(groups);
  try {
    return await body();
  } catch (error) {
    call.giveUp(error);
    throw error;
  }
}

const others = (groups: readonly (ProcessGroup | null)[] = []): ProcessGroup[] =>
  groups.filter((group) => group !== null && group.size > 1) as ProcessGroup[];

/** What others are told of an error. Never throws. */
export function reportOf(error: unknown): string {
  const said = error instanceof DsError ? `${error.code} | ${error.message}` : spelled(error);
  return said.length > MOST ? `${said.slice(0, MOST)} ...` : said;
}

/** Not all that is thrown becomes a string. */
function spelled(error: unknown): string {
  try {
    return String(error);
  } catch {
    return formatValue(error);
  }
}
