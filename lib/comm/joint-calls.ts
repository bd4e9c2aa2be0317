// Joint calls: if one rank throws, the others receive its error at once instead of a timeout.
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import type { ProcessGroup } from './process-group.js';

/** Maximum characters of an error that other ranks receive. */
const MAX_CHARACTERS = 2000;

/** Groups with ranks that take part in a call; null: no group. */
export interface JointGroups {
  /** Groups with collectives in every such call. */
  always?: readonly (ProcessGroup | null)[];
  /**
   * Groups with collectives in some calls. Their ranks receive an error only if this rank has
   * issued a collective in the failing call; else they may continue with another call.
   */
  perhaps?: readonly (ProcessGroup | null)[];
}

/** A call that all ranks of its groups make. */
export class JointCall {
  private readonly issuedBefore: ReadonlyMap<ProcessGroup, number>;

  /** The ranks of `groups` make the call. */
  constructor(private readonly groups: JointGroups) {
    this.issuedBefore = new Map(
      groupsOfSeveral(groups.perhaps).map((group) => [group, group.issued]),
    );
  }

  /**
   * Ends this rank's part of the call. Ranks that continue get DS_COMM with this rank and `error`,
   * unless they throw at the same place. Never throws.
   */
  giveUp(error: unknown): void {
    const { always } = this.groups;
    const started = [...this.issuedBefore].filter(([{ issued }, before]) => issued !== before);
    const all = new Set([...groupsOfSeveral(always), ...started.map(([group]) => group)]);
    for (const group of all) group.giveUp(reportOf(error));
  }
}

/** Runs `body`. If it throws, the other ranks of the groups receive the error. */
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

/** Returns the groups of several ranks. */
export const groupsOfSeveral = (groups: readonly (ProcessGroup | null)[] = []): ProcessGroup[] =>
  groups.filter((group) => group !== null).filter(({ size }) => size > 1);

/** Returns the text of an error for other ranks. Never throws. */
export function reportOf(error: unknown): string {
  const errorText =
    error instanceof DsError ? `${error.code} | ${error.message}` : formatError(error);
  return errorText.length > MAX_CHARACTERS
    ? `${errorText.slice(0, MAX_CHARACTERS)} ...`
    : errorText;
}

/** String() may throw for a thrown value. */
function formatError(error: unknown): string {
  try {
    return String(error);
  } catch {
    return formatValue(error);
  }
}
