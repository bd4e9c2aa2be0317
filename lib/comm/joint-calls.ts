// Joint calls: calls that all ranks of a group make together. If one rank throws, the others get
// its error at once instead of a timeout.
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import type { ProcessGroup } from './process-group.js';

/** Maximum characters of an error that is sent to other ranks. */
const MAX_CHARACTERS = 2000;

/** The groups of ranks that make a joint call. Null entries are ignored. */
export interface JointGroups {
  /** Groups that run collectives in every such call. */
  always?: readonly (ProcessGroup | null)[];
  /**
   * Groups that run collectives only in some of these calls. Their ranks get the error only if this
   * rank has issued a collective in the failing call. Without a collective, they do not wait for
   * this rank.
   */
  perhaps?: readonly (ProcessGroup | null)[];
}

/** A call that all ranks of its groups make together. */
export class JointCall {
  private readonly issuedBefore: ReadonlyMap<ProcessGroup, number>;

  /** Starts the call: counts the collectives of `groups` so far. */
  constructor(private readonly groups: JointGroups) {
    this.issuedBefore = new Map(
      groupsOfSeveral(groups.perhaps).map((group) => [group, group.issued]),
    );
  }

  /**
   * Ends the call on this rank with an error. Ranks that continue get DS_COMM with the number of
   * this rank and `error`. Ranks that throw in the same call are not affected. Never throws.
   */
  giveUp(error: unknown): void {
    const { always } = this.groups;
    const started = [...this.issuedBefore].filter(([{ issued }, before]) => issued !== before);
    const all = new Set([...groupsOfSeveral(always), ...started.map(([group]) => group)]);
    for (const group of all) group.giveUp(reportOf(error));
  }
}

/** Runs `body`. If it throws, the other ranks of the groups get the error. */
export function jointly<Result>(groups: JointGroups, body: () => Result): Result {
  const call = new JointCall(groups);
  try {
    return body();
  } catch (error) {
    call.giveUp(error);
    throw error;
  }
}

/** Like jointly(), for an asynchronous body. */
export async function jointlyAsync<Result>(
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

/** Returns the groups with more than one rank. */
export const groupsOfSeveral = (groups: readonly (ProcessGroup | null)[] = []): ProcessGroup[] =>
  groups.filter((group) => group !== null).filter(({ size }) => size > 1);

/** Returns the text of an error, as other ranks get it. Never throws. */
export function reportOf(error: unknown): string {
  const errorText =
    error instanceof DsError ? `${error.code} | ${error.message}` : formatError(error);
  return errorText.length > MAX_CHARACTERS
    ? `${errorText.slice(0, MAX_CHARACTERS)} ...`
    : errorText;
}

/** Returns an error as text. A thrown value may have a toString() that throws. */
function formatError(error: unknown): string {
  try {
    return String(error);
  } catch {
    return formatValue(error);
  }
}
