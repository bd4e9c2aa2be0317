// Who uses an engine's state while it waits for a disk: a save, an export, or a load. Nobody else
// changes it meanwhile.
import { DsError } from '../../errors.js';

interface Use {
  op: string;
  /** Whether it writes the state, as a load does, or reads it. */
  changes: boolean;
}

export class StateUse {
  private readonly uses = new Set<Use>();

  /** Runs `body`, which reads the state. Throws DS_AUTOGRAD while it is loaded. */
  async reading<Result>(op: string, body: () => Promise<Result>): Promise<Result> {
    this.requireLoaded(op);
    return this.using({ op, changes: false }, body);
  }

  /** Runs `body`, which replaces the state. Throws DS_AUTOGRAD while it is saved or loaded. */
  async changing<Result>(op: string, body: () => Promise<Result>): Promise<Result> {
    this.requireIdle(op);
    return this.using({ op, changes: true }, body);
  }

  /** Throws DS_AUTOGRAD while the state is saved or loaded: `op` would change it. */
  requireIdle(op: string): void {
    for (const use of this.uses) throw notAwaited(op, use);
  }

  /** Throws DS_AUTOGRAD while the state is loaded: `op` would read some of each. */
  requireLoaded(op: string): void {
    for (const use of this.uses) if (use.changes) throw notAwaited(op, use);
  }

  private async using<Result>(use: Use, body: () => Promise<Result>): Promise<Result> {
    this.uses.add(use);
    try {
      return await body();
    } finally {
      this.uses.delete(use);
    }
  }
}

function notAwaited(op: string, { op: under, changes }: Use): DsError {
  return new DsError({
    code: 'DS_AUTOGRAD',
    op,
    expected: `${under}() to have ended`,
    got: `a call while it ${changes ? 'replaces' : 'writes'} the state of the engine`,
    hint:
      under === 'saveCheckpoint'
        ? 'Await saveCheckpoint(); with { asynchronous: true } training goes on beside it.'
        : `Await ${under}().`,
  });
}
